package cql

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gocql/gocql"

	"bowstring/schema"
)

// fault turns a driver's error into one that says what failed, on which table and host, and what to check. It is:
//
//   - ctx's cause if ctx has ended;
//   - a [schema.ErrUnavailable] for faults that another replica or a later attempt may avoid: timeouts, overload, too
//     few replicas, lost connections;
//   - an error without a sentinel for faults that need a change of the cluster or the configuration: credentials,
//     permissions, missing tables.
func (s *Store) fault(ctx context.Context, err error, host *gocql.HostInfo, table, doing string) error {
	where := s.where(host, table)
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", doing, context.Cause(ctx))
	}
	return classify(err, doing, where, s.config)
}

// cellFault is fault for a read of bytes that a manifest names. It is:
//
//   - a [schema.ErrDataLoss] if the server has no such table or column, or one of another type: the bytes are gone;
//   - a [schema.ErrUnavailable] if the store's user may not read the table: the bytes are there, and can be read once
//     an operator has granted the right. The client's own rights are not involved.
func (s *Store) cellFault(ctx context.Context, err error, host *gocql.HostInfo, table string) error {
	code, ok := codeOf(err)
	switch {
	case ctx.Err() != nil:
	case ok && code == codeInvalid, otherColumns(err):
		return fmt.Errorf("%w: read: %s: the table or the column that was read is gone, or is another one now: %w; "+
			"make the table again from a copy, or drop the snapshots that refer to it", schema.ErrDataLoss,
			s.where(host, table), err)
	case ok && code == codeUnauthorized:
		return fmt.Errorf("%w: read: %s: the store's user may not read the table: %w; GRANT SELECT on it to that user",
			schema.ErrUnavailable, s.where(host, table), err)
	}
	return s.fault(ctx, err, host, table, "read")
}

// otherColumns reports whether an error says that a table's columns do not match this program's statements.
func otherColumns(err error) bool {
	return errors.As(err, new(gocql.MarshalError)) || errors.As(err, new(gocql.UnmarshalError)) ||
		errors.Is(err, gocql.ErrQueryArgLength)
}

// where names the table and the host in errors. Without a host it names those of the
// address.
func (s *Store) where(host *gocql.HostInfo, table string) string {
	at := strings.Join(s.config.Hosts, ",")
	if host != nil {
		at = host.ConnectAddress().String()
	}
	if table == "" {
		return fmt.Sprintf("keyspace %s at %s:%d", s.config.Keyspace, at, s.config.Port)
	}
	if !strings.Contains(table, ".") {
		table = s.config.Keyspace + "." + table
	}
	return fmt.Sprintf("table %s at %s:%d", table, at, s.config.Port)
}

// Codes of the native protocol, section 9.
const (
	codeServer        = 0x0000
	codeCredentials   = 0x0100
	codeUnavailable   = 0x1000
	codeOverloaded    = 0x1001
	codeBootstrapping = 0x1002
	codeWriteTimeout  = 0x1100
	codeReadTimeout   = 0x1200
	codeReadFailure   = 0x1300
	codeWriteFailure  = 0x1500
	codeCASUnknown    = 0x1700
	codeSyntax        = 0x2000
	codeUnauthorized  = 0x2100
	codeInvalid       = 0x2200
	codeAlreadyExists = 0x2400
)

// codeOf returns the code of a server's error. gocql and its fork name the method differently, and the fork's own
// interface for it does not match its errors.
func codeOf(err error) (code int, ok bool) {
	var upstream interface {
		error
		Code() int
	}
	var fork interface {
		error
		GetCode() int
	}
	switch {
	case errors.As(err, &upstream):
		return upstream.Code(), true
	case errors.As(err, &fork):
		return fork.GetCode(), true
	}
	return 0, false
}

// classify is fault for an error that is not due to the caller's context.
func classify(err error, doing, where string, c *Config) error {
	unavailable := func(check string) error {
		return fmt.Errorf("%w: %s: %s: %w; %s", schema.ErrUnavailable, doing, where, err, check)
	}
	// Errors that are classified already keep their class.
	if errors.Is(err, schema.ErrNotFound) || errors.Is(err, schema.ErrDataLoss) ||
		errors.Is(err, schema.ErrUnavailable) {
		return fmt.Errorf("%s: %s: %w", doing, where, err)
	}
	if code, ok := codeOf(err); ok {
		switch code {
		case codeCredentials:
			return rejected(err, doing, where)
		case codeUnauthorized:
			return fmt.Errorf("%s: %s: %w; grant the user SELECT and MODIFY on keyspace %s, and CREATE to "+
				"make its tables", doing, where, err, c.Keyspace)
		case codeUnavailable:
			return unavailable("too few replicas are up for the consistency asked for: check nodetool status, the " +
				"keyspace's replication and the parameters consistency and write")
		case codeOverloaded:
			return unavailable("the server sheds load: fewer reads in flight, or more nodes")
		case codeBootstrapping:
			return unavailable("the node is still joining: wait for it")
		case codeReadTimeout, codeWriteTimeout, codeCASUnknown:
			return unavailable("replicas were too slow: check the load, garbage collection and disks of the nodes")
		case codeReadFailure, codeWriteFailure, codeServer:
			return unavailable("the server failed at it: its log says why")
		}
		return fmt.Errorf("%s: %s: %w", doing, where, err)
	}
	switch {
	case errors.Is(err, gocql.ErrSessionClosed):
		return unavailable("the store is being closed")
	case errors.Is(err, gocql.ErrTimeoutNoResponse):
		return unavailable(fmt.Sprintf("no answer within %v: check the network and the node, or raise the "+
			"parameter timeout", c.Timeout))
	case errors.Is(err, gocql.ErrNoConnections), errors.Is(err, gocql.ErrNoConnectionsStarted):
		return unavailable(connectAdvice(c))
	case errors.Is(err, gocql.ErrNoStreams):
		return unavailable("every connection is full of requests: raise the parameter conns")
	case otherColumns(err):
		return fmt.Errorf("%s: %s: %w", doing, where, err)
	}
	// The rest are connections that were cut, refused or silent. The driver reports some of them only as text.
	return unavailable(connectAdvice(c))
}

// connectAdvice says what to check if a connection failed.
func connectAdvice(c *Config) string {
	s := fmt.Sprintf("the connection failed: check that the nodes are up, the network, the addresses, port %d", c.Port)
	if c.TLS {
		return s + ", and the certificates"
	}
	return s + ", and whether the servers want TLS (the parameter tls)"
}

// rejected is the error of refused or missing credentials.
func rejected(err error, doing, where string) error {
	return fmt.Errorf("%s: %s: %w; check the parameter user or %s, and the password in password_file, %s or %s",
		doing, where, err, EnvUser, EnvPassword, EnvPasswordFile)
}

// uncertain reports whether a failed write may have been made, so that the outcome of a transaction has to be read
// back. Only a server's refusal is certain.
func uncertain(err error) bool {
	code, ok := codeOf(err)
	if !ok {
		return true
	}
	switch code {
	case codeServer, codeWriteTimeout, codeReadTimeout, codeWriteFailure, codeReadFailure, codeCASUnknown:
		return true
	}
	return false
}
