package command

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	arrowflight "github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"bowstring/schema"
)

// client calls a server by Arrow Flight. With --store it starts a node of its own in this
// process and calls that one. Commands therefore have one code path for both.
type client struct {
	arrowflight.Client
	target string // what --server or --store named, for messages
	node   *node  // nil for a client of a server

	dial func() (flightClient, error) // makes another connection, with the same credentials
}

const (
	// serverSilent is the silence after which gRPC pings the server, and serverAnswer the
	// time for the answer. A call to a server that was stopped, or whose machine is gone,
	// fails after both. grpc-go allows no interval below 10 s.
	serverSilent = 20 * time.Second
	serverAnswer = 20 * time.Second
)

// pipeBytes is the capacity in bytes of the connection within the process.
const pipeBytes = 4 << 20

// connect returns a client of the server or the store that the flags name. ctx can end
// the opening of a store. The store is created if create is set. The caller closes the
// client.
func (a *App) connect(ctx context.Context, create bool) (*client, error) {
	options := []grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)),
		grpc.WithUserAgent("bowstring/" + thisBuild().Version),
		// gRPC's own retries would hide errors that the callers handle.
		grpc.WithDisableRetry(),
	}
	c := &client{target: a.globals.Server}
	var addr string
	// A call to another node of the cluster uses the token of the named server: see at.
	if c.target != "" {
		host, encrypted, err := serverAddr(c.target)
		if err != nil {
			return nil, err
		}
		token := a.cluster
		if token == nil {
			own, err := a.token()
			if err != nil {
				return nil, err
			}
			token = &own
		}
		auth, err := a.globals.dialOptions(*token, host, encrypted)
		if err != nil {
			return nil, err
		}
		options = append(options, auth...)
		options = append(options, grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: serverSilent, Timeout: serverAnswer}))
		if addr = host; !strings.HasPrefix(host, "unix:") {
			addr = "passthrough:///" + host
		}
	} else {
		c.target = a.globals.Store
		var err error
		if c.node, err = newNode(ctx, c.target, create, limits{windowBytes: defaultWindow()},
			a.Far, a.quietLog()); err != nil {
			return nil, err
		}
		pipe := bufconn.Listen(pipeBytes)
		c.node.serve(pipe)
		addr = "passthrough:///store"
		options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				return pipe.DialContext(ctx)
			}))
	}
	c.dial = func() (flightClient, error) {
		conn, err := grpc.NewClient(addr, options...)
		if err != nil {
			return flightClient{}, err
		}
		return flightClient{arrowflight.NewClientFromConn(conn, nil), conn}, nil
	}
	var err error
	if c.Client, err = c.dial(); err != nil {
		return nil, errors.Join(err, c.closeNode())
	}
	return c, nil
}

// quietLog is the logger of a node that works for one command. It logs warnings only,
// unless the user set a level.
func (a *App) quietLog() *slog.Logger {
	if a.settings.origin("log-level").level == fromDefault {
		g := *a.globals
		g.LogLevel = "warn"
		if log, err := g.logger(a.Stderr); err == nil {
			return log
		}
	}
	return a.Log
}

// flightClient is a Flight client that owns its connection. The library's client does not
// close a connection that it was given.
type flightClient struct {
	arrowflight.Client
	conn *grpc.ClientConn
}

func (c flightClient) Close() error { return c.conn.Close() }

// Close ends the connection and then the node, if there is one. No call may run any more.
func (c *client) Close() error { return errors.Join(c.Client.Close(), c.closeNode()) }

// closeNode ignores the command's context: a cancelled command has to close the store
// too.
func (c *client) closeNode() error {
	if c.node == nil {
		return nil
	}
	return c.node.close(context.Background())
}

// act calls an action with a JSON body, and calls each with every decoded result. An
// error of each ends the call and is returned.
func act[T any](ctx context.Context, c *client, name string, body any, each func(T) error) error {
	ctx, cancel := context.WithCancel(ctx) // ends the call if each fails
	defer cancel()
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	stream, err := c.DoAction(ctx, &arrowflight.Action{Type: name, Body: data})
	if err != nil {
		return err
	}
	for {
		result, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var v T
		// Unknown fields are ignored, so that newer servers can add some.
		if err := json.NewDecoder(bytes.NewReader(result.GetBody())).Decode(&v); err != nil {
			return fmt.Errorf("%s: %w", c.target, unexpected(name, err))
		}
		if err := each(v); err != nil {
			return err
		}
	}
}

// actOne calls an action that returns exactly one result. Another number is an error.
func actOne[T any](ctx context.Context, c *client, name string, body any) (T, error) {
	var result T
	n := 0
	err := act(ctx, c, name, body, func(v T) error {
		result = v
		n++
		return nil
	})
	if err == nil && n != 1 {
		err = fmt.Errorf("%s: %s gave %d results instead of one", c.target, name, n)
	}
	return result, err
}

// unexpected is the error for an answer that cannot be decoded. The usual cause is a
// server of another version.
func unexpected(action string, err error) error {
	return fmt.Errorf("the answer to %s is not what this version of bowstring expects: %w", action, err)
}

// ask is actOne on the server or store that the flags name.
func ask[T any](ctx context.Context, a *App, name string, body any) (result T, err error) {
	err = a.with(ctx, false, func(c *client) (err error) {
		result, err = actOne[T](ctx, c, name, body)
		return err
	})
	return result, err
}

// askAll calls an action on the server or store that the flags name, and returns all
// results. Without results the list is empty and not nil, for JSON.
func askAll[T any](ctx context.Context, a *App, name string, body any) ([]T, error) {
	list := []T{}
	err := a.with(ctx, false, func(c *client) error {
		return act(ctx, c, name, body, func(v T) error {
			list = append(list, v)
			return nil
		})
	})
	return list, err
}

// with calls f with a client of the server or store that the flags name, and closes it.
// If the server cannot be reached, the error has its address.
func (a *App) with(ctx context.Context, create bool, f func(c *client) error) error {
	c, err := a.connect(ctx, create)
	if err != nil {
		return err
	}
	err = f(c)
	if why, ok := unreachable(err); ok {
		err = fmt.Errorf("no server answers at %s: %s", c.target, why)
	}
	return errors.Join(err, c.Close())
}

// With calls f with a connection to the server that the flags name, or to a node of its
// own on the store. dial makes more connections. The caller of dial closes them; conn is
// closed here.
func (a *App) With(ctx context.Context, f func(conn arrowflight.Client,
	dial func() (arrowflight.Client, error)) error) error {
	return a.with(ctx, false, func(c *client) error {
		return f(c.Client, func() (arrowflight.Client, error) { return c.dial() })
	})
}

// at calls f with a client of another server of the same cluster, with the same
// credentials. The address comes from the server of --server. If the address is less safe
// than that of --server, at returns an error. Otherwise a server could get the token sent
// in plain text.
func (a *App) at(ctx context.Context, address string, f func(c *client) error) error {
	token, err := a.token()
	if err != nil {
		return err
	}
	_, had, err := serverAddr(a.globals.Server)
	if err != nil {
		return err
	}
	if _, has, err := serverAddr(address); err != nil || had && !has {
		return errors.Join(err, fmt.Errorf("%w: %q is not as safe as %s, which names it", schema.ErrInvalid, address,
			a.globals.Server))
	}
	other, globals := *a, *a.globals
	globals.Server = address
	other.globals, other.cluster = &globals, &token
	return other.with(ctx, false, f)
}

// unreachable reports whether err means that no connection was made, and why. gRPC wraps
// the reason in texts without information, which are removed.
func unreachable(err error) (why string, ok bool) {
	if status.Code(err) != codes.Unavailable {
		return "", false
	}
	why, ok = strings.CutPrefix(status.Convert(err).Message(), "connection error: desc = ")
	if text, err := strconv.Unquote(why); err == nil {
		why = text
	}
	return strings.TrimPrefix(why, "transport: Error while dialing: "), ok
}

// message is the text of err for people. If the error is of a server, it keeps the
// server's text and removes gRPC's wrapping. Bytes that could control a terminal are
// escaped, because the text may come from elsewhere.
func message(err error) string {
	text := err.Error()
	var remote interface{ GRPCStatus() *status.Status }
	if errors.As(err, &remote) {
		if inner, ok := remote.(error); ok {
			text = strings.Replace(text, inner.Error(), remote.GRPCStatus().Message(), 1)
		}
	}
	return printable(oneLine(text))
}

// tokenVariable holds the token of a client. There is no flag for it: what is on
// a command line, everybody on the machine can read.
// tokenVariable names the environment variable with the token of a client. There is no
// flag for the token itself, because all users of a machine can read command lines.
const tokenVariable = "BOWSTRING_TOKEN" //nolint:gosec // the name of one

// clientFlags are the credentials of a command, and the roots that it trusts.
type clientFlags struct {
	TokenFile  string `setting:"" client:"" type:"path" placeholder:"FILE" help:"File with the token for --server (default: the token in BOWSTRING_TOKEN)."`
	ServerCA   string `name:"server-ca" setting:"" client:"" type:"path" placeholder:"FILE" help:"Roots of the certificate of a --server grpc+tls://…, as PEM (default: the system's)."`
	ClientCert string `setting:"" client:"" type:"path" placeholder:"FILE" help:"Certificate to show to it, as PEM."`
	ClientKey  string `setting:"" client:"" type:"path" placeholder:"FILE" help:"Its private key, as PEM."`
	// PlaintextToken is for networks that encrypt by themselves, such as a service mesh.
	PlaintextToken bool `setting:"" client:"" help:"Send the token also to a --server grpc://… of another machine, unencrypted."`
}

// dialOptions returns the credentials of a connection to addr (HOST:PORT). It returns an
// error if a token would be sent unencrypted to another machine.
func (f *clientFlags) dialOptions(token, addr string, encrypted bool) ([]grpc.DialOption, error) {
	var options []grpc.DialOption
	if encrypted {
		config, err := f.tls()
		if err != nil {
			return nil, err
		}
		options = append(options, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	} else {
		if f.ClientCert != "" {
			return nil, usagef("--client-cert is for a --server grpc+tls://%s", addr)
		}
		options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	}
	if token == "" {
		return options, nil
	}
	host, _, err := net.SplitHostPort(addr)
	// A Unix socket does not leave the machine.
	if strings.HasPrefix(addr, "unix:") {
		host, err = "localhost", nil
	}
	if ip := net.ParseIP(host); !encrypted && !f.PlaintextToken &&
		(err != nil || host != "localhost" && (ip == nil || !ip.IsLoopback())) {
		return nil, usagef("a token would go to %s for everybody on the way to read: use --server grpc+tls://%s, or "+
			"say --plaintext-token", addr, addr)
	}
	return append(options, grpc.WithPerRPCCredentials(bearer(token))), nil
}

// token returns the token for the server that the user named, or "" for none. If there is
// one in a file and one in the environment, the one set closer to the command line is
// used.
//
// If a server is named at the same level as the token, the token belongs to that server.
// It is sent to no other: --server of an unknown host would otherwise send it the token
// of the configuration file.
func (a *App) token() (string, error) {
	f := &a.globals.clientFlags
	from := a.settings.origin("token-file")
	token, what := strings.TrimSpace(os.Getenv(tokenVariable)), tokenVariable
	switch {
	case f.TokenFile != "" && (token == "" || from.level >= fromEnv):
		var err error
		if token, err = readToken(f.TokenFile); err != nil {
			return "", err
		}
		what = "the token of " + f.TokenFile
	case token == "":
		return "", nil
	default:
		from = origin{fromEnv, tokenVariable}
	}
	owner := a.settings.serverAt(from.level)
	if owner == "" || sameServer(owner, a.globals.Server) {
		return token, nil
	}
	return "", usagef("%s belongs to %s, which is named beside it (%s), and is not sent to %s: give a token for that by "+
		"--token-file", what, owner, from, a.globals.Server)
}

// readToken reads the token of --token-file. It rejects an empty file, and one with
// several words, which is probably the wrong file.
func readToken(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", fmt.Errorf("--token-file: %s does not hold one token", path)
	}
	return token, nil
}

// serverAt returns the server that is named at one level, and "" if none is.
func (s *settings) serverAt(at level) string {
	switch at {
	case fromFlag:
		if flag := s.known["server"]; s.flags[flag] {
			server, _ := flag.Target.Interface().(string)
			return server
		}
	case fromEnv:
		if name, set := environment(s.known["server"]); set {
			return os.Getenv(name)
		}
	case fromFile:
		if node := s.file["server"]; node != nil {
			return node.Value
		}
	}
	return ""
}

// sameServer reports whether two addresses mean the same server, reached in the same way.
func sameServer(a, b string) bool {
	one, oneTLS, err := serverAddr(a)
	other, otherTLS, otherErr := serverAddr(b)
	return err == nil && otherErr == nil && oneTLS == otherTLS && strings.EqualFold(one, other)
}

// tls returns the roots to trust and the certificate to present.
func (f *clientFlags) tls() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.ServerCA != "" {
		pem, err := os.ReadFile(f.ServerCA)
		if err != nil {
			return nil, fmt.Errorf("--server-ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--server-ca: there is no certificate in %s", f.ServerCA)
		}
	}
	if (f.ClientCert == "") != (f.ClientKey == "") {
		return nil, usagef("--client-cert and --client-key belong together: give both, or neither")
	}
	if f.ClientCert != "" {
		pair, err := tls.LoadX509KeyPair(f.ClientCert, f.ClientKey)
		if err != nil {
			return nil, errors.Join(errors.New("--client-cert, --client-key"), err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// bearer is a token that gRPC sends with each call.
type bearer string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials. It returns false,
// because dialOptions has already checked where the token goes.
func (bearer) RequireTransportSecurity() bool { return false }

// String keeps the token out of logs and messages.
func (bearer) String() string { return "a token" }

// DatasetRef is datasetRef, for other programs that are built on this package.
type DatasetRef = datasetRef

// datasetRef is a dataset as written on the command line: NAME, NAME@SNAPSHOT or NAME@TAG.
type datasetRef struct {
	Name     string
	Snapshot int64 // 0: the newest, or the one with the tag
	Tag      string
}

// UnmarshalText reads NAME[@SNAPSHOT or @TAG].
func (r *datasetRef) UnmarshalText(text []byte) (err error) {
	r.Name, r.Snapshot, r.Tag, err = schema.ParseSnapshotName("dataset", string(text))
	return err
}

// pinned reports whether the reference names one snapshot, so that new ones do not change
// it.
func (r datasetRef) pinned() bool { return r.Snapshot != 0 || r.Tag != "" }

func (r datasetRef) String() string { return schema.FormatSnapshotName(r.Name, r.Snapshot, r.Tag) }

// splitRef is a dataset or one split of it: NAME[@SNAPSHOT or @TAG][/SPLIT].
type splitRef struct {
	datasetRef
	Split string // "": all
}

// UnmarshalText reads NAME[@SNAPSHOT or @TAG][/SPLIT].
func (r *splitRef) UnmarshalText(text []byte) error {
	dataset, split, has := strings.Cut(string(text), "/")
	if err := r.datasetRef.UnmarshalText([]byte(dataset)); err != nil {
		return err
	}
	r.Split = split
	if has {
		return schema.CheckName("split", split)
	}
	return nil
}

func (r splitRef) String() string {
	if r.Split == "" {
		return r.datasetRef.String()
	}
	return r.datasetRef.String() + "/" + r.Split
}
