package cql

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gocql/gocql"

	"bowstring/schema"
)

// Dialer makes the connections to the servers, such as with a delay in tests.
type Dialer interface {
	DialContext(ctx context.Context, network, addr string) (net.Conn, error)
}

// attempts is how many hosts the driver tries at once for a request, without a
// pause between them. Reads of blobs have their own, readRetry.
const attempts = 3

// cluster is what every session starts from.
func (c *Config) cluster(opts Options) (*gocql.ClusterConfig, error) {
	cl := gocql.NewCluster(c.Hosts...)
	cl.Port = c.Port
	cl.ProtoVersion = c.Proto
	cl.Timeout = c.Timeout
	cl.ConnectTimeout = c.Connect
	cl.Consistency = c.Read
	cl.SerialConsistency = gocql.Serial
	if c.LocalSerial {
		cl.SerialConsistency = gocql.LocalSerial
	}
	cl.RetryPolicy = movingRetries(attempts - 1)
	cl.ReconnectInterval = 5 * time.Second // to nodes that were down
	cl.DefaultIdempotence = true           // transactions say otherwise
	// Responses come without a description of their columns, which the driver knows
	// from preparing the statement. That is safe as no statement selects *, and
	// transactions, whose columns vary, say otherwise.
	cl.DisableSkipMetadata = false
	cl.Logger = driverLogger{opts.Logger}
	if opts.Dialer != nil {
		cl.Dialer = opts.Dialer
	}
	user, password, err := c.credentials()
	if err != nil {
		return nil, err
	}
	if user != "" {
		cl.Authenticator = gocql.PasswordAuthenticator{Username: user, Password: password}
	}
	if c.TLS {
		config, err := c.tls()
		if err != nil {
			return nil, err
		}
		cl.SslOpts = &gocql.SslOptions{Config: config, EnableHostVerification: !c.NoVerify}
	}
	return cl, nil
}

// movingRetries tries the next replica. The struct hides what else the policy
// implements: ScyllaDB's fork takes the statements that Cassandra prepares for
// lightweight transactions, and asks a policy that knows of these to stay with
// the host that has just failed.
func movingRetries(n int) gocql.RetryPolicy {
	return struct{ gocql.RetryPolicy }{&gocql.SimpleRetryPolicy{NumRetries: n}}
}

func (c *Config) tls() (*tls.Config, error) {
	config := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		ServerName:         c.ServerName,
		InsecureSkipVerify: c.NoVerify, //nolint:gosec // the parameter verify=0 says so
	}
	if c.CA != "" {
		pem, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("%w: ca: %w", schema.ErrInvalid, err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, bad("ca", c.CA, "a file with certificates in PEM form")
		}
	}
	if c.Cert != "" {
		pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, fmt.Errorf("%w: cert and key: %w", schema.ErrInvalid, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// session opens a session of some connections to each host for a keyspace, whose replicas it then knows.
func (s *Store) session(ctx context.Context, keyspace string, conns int) (*gocql.Session, *steering, error) {
	cl, err := s.config.cluster(s.options)
	if err != nil {
		return nil, nil, err
	}
	cl.Keyspace = keyspace
	cl.NumConns = conns
	st := s.newSteering(keyspace)
	cl.PoolConfig.HostSelectionPolicy = st
	session, err := connect(ctx, s.connected, cl, st.countReplicas)
	if err != nil {
		return nil, nil, s.connectFault(ctx, err)
	}
	return session, st, nil
}

// connectFault explains why no session could be opened. The driver gives most
// reasons as text only.
func (s *Store) connectFault(ctx context.Context, err error) error {
	const doing = "connect"
	where := s.where(nil, "")
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", doing, context.Cause(ctx))
	}
	var unknown x509.UnknownAuthorityError
	var hostname x509.HostnameError
	var verification *tls.CertificateVerificationError
	text := err.Error()
	switch {
	case errors.As(err, &hostname), strings.Contains(text, "x509: certificate is valid for"),
		strings.Contains(text, "doesn't contain any IP SANs"):
		return fmt.Errorf("%s: %s: %w; the parameter server_name says which name to expect", doing, where, err)
	case errors.As(err, &unknown), errors.As(err, &verification), strings.Contains(text, "x509:"):
		return fmt.Errorf("%s: %s: %w; the parameter ca names the file with the authority that signed the servers' "+
			"certificates", doing, where, err)
	case strings.Contains(text, "tls: certificate required"),
		strings.Contains(text, "remote error: tls: bad certificate"),
		strings.Contains(text, "remote error: tls: certificate"):
		return fmt.Errorf("%s: %s: %w; the servers want a certificate: the parameters cert and key", doing, where, err)
	case strings.Contains(text, "first record does not look like a TLS handshake"):
		return fmt.Errorf("%s: %s: %w; the servers do not use TLS: leave the parameter tls out", doing, where, err)
	case strings.Contains(text, "assword") || strings.Contains(text, "uthentic"):
		return rejected(err, doing, where)
	}
	fault := classify(err, doing, where, s.config)
	if s.config.TLS && s.config.Cert == "" && cutOff(text) {
		return fmt.Errorf("%w; if the servers want a certificate: the parameters cert and key", fault)
	}
	return fault
}

// cutOff reports whether a connection was ended, and nothing was heard of why. A server that misses a certificate says
// so and ends the connection; who writes meanwhile may learn of the end alone.
func cutOff(text string) bool {
	return slices.ContainsFunc([]string{"no response to connection startup", "connection reset by peer", "broken pipe"},
		func(end string) bool { return strings.Contains(text, end) })
}

// pair is an interval of tokens, open at its start and closed at its end.
type pair struct{ start, end int64 }

// ring cuts the range of Murmur3 tokens into n intervals of the same size.
func ring(n int) []pair {
	parts := make([]pair, n)
	step := math.MaxUint64/uint64(n) + 1
	low := int64(math.MinInt64)
	for i := range parts {
		high := int64(math.MaxInt64)
		if i < n-1 {
			high = int64(uint64(low) + step)
		}
		parts[i] = pair{low, high}
		low = high
	}
	return parts
}

// driverLogger passes what the driver says to slog, at debug level: what
// matters of it comes back as errors.
type driverLogger struct{ log *slog.Logger }

func (l driverLogger) Print(v ...any) { l.write(fmt.Sprint(v...)) }

func (l driverLogger) Printf(format string, v ...any) { l.write(fmt.Sprintf(format, v...)) }

func (l driverLogger) Println(v ...any) { l.write(fmt.Sprintln(v...)) }

func (l driverLogger) write(s string) {
	l.log.Debug("database driver", "message", strings.TrimSpace(s))
}
