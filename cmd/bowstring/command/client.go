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

// client talks Flight to a server, or to a node of its own on a store.
type client struct {
	arrowflight.Client
	target string // what --server or --store named, for messages
	node   *node  // nil when talking to a server

	dial func() (flightClient, error) // makes one more connection
}

const (
	// serverSilent is after which silence a server is asked whether it is there, serverAnswer how long it may take to
	// say so. A call of one that is stopped, or whose machine is gone, ends then.
	serverSilent = 20 * time.Second
	serverAnswer = 20 * time.Second
)

// pipeBytes is what the connection within the process may hold.
const pipeBytes = 4 << 20

// connect returns a client of the server or of the store that the flags name; ctx ends the opening of a store.
// The store is created if create says so.
func (a *App) connect(ctx context.Context, create bool) (*client, error) {
	options := []grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)),
		grpc.WithUserAgent("bowstring/" + thisBuild().Version),
		grpc.WithDisableRetry(),
	}
	c := &client{target: a.globals.Server}
	var addr string
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

// quietLog is the logger of a node that works for one command: with warnings
// only, unless a level was asked for.
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

// flightClient closes the connection that it was made from.
type flightClient struct {
	arrowflight.Client
	conn *grpc.ClientConn
}

func (c flightClient) Close() error { return c.conn.Close() }

// Close ends the connection, and the node if there is one: by then none of its calls runs.
func (c *client) Close() error { return errors.Join(c.Client.Close(), c.closeNode()) }

func (c *client) closeNode() error {
	if c.node == nil {
		return nil
	}
	return c.node.close(context.Background())
}

// act calls the JSON action and gives each result to each, decoded.
func act[T any](ctx context.Context, c *client, name string, body any, each func(T) error) error {
	ctx, cancel := context.WithCancel(ctx) // ends the call where each fails
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
		if err := json.NewDecoder(bytes.NewReader(result.GetBody())).Decode(&v); err != nil {
			return fmt.Errorf("%s: %w", c.target, unexpected(name, err))
		}
		if err := each(v); err != nil {
			return err
		}
	}
}

// actOne calls an action that has exactly one result.
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

// unexpected is the error of an answer to an action that another version gives.
func unexpected(action string, err error) error {
	return fmt.Errorf("the answer to %s is not what this version of bowstring expects: %w", action, err)
}

// ask calls an action that has exactly one result at what the flags name.
func ask[T any](ctx context.Context, a *App, name string, body any) (result T, err error) {
	err = a.with(ctx, false, func(c *client) (err error) {
		result, err = actOne[T](ctx, c, name, body)
		return err
	})
	return result, err
}

// askAll calls an action at what the flags name, and returns its results.
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

// with runs f with a client of what the flags name, and adds to a failure to reach it where that is.
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

// With runs f with a connection to the server that the flags name, or to one of its own on the store; dial makes more.
func (a *App) With(ctx context.Context, f func(conn arrowflight.Client,
	dial func() (arrowflight.Client, error)) error) error {
	return a.with(ctx, false, func(c *client) error {
		return f(c.Client, func() (arrowflight.Client, error) { return c.dial() })
	})
}

// at calls f with a client of another server of the same cluster, that is reached as the one of --server is. The server
// names the address: it is not called if it is less safe.
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

// unreachable says whether err is that no connection could be made, and why.
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

// message is the text of err for people: for an error from a server only the server's
// text, without gRPC's wrapping.
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
const tokenVariable = "BOWSTRING_TOKEN" //nolint:gosec // the name of one

// clientFlags say how a command comes in at a server.
type clientFlags struct {
	TokenFile  string `setting:"" client:"" type:"path" placeholder:"FILE" help:"File with the token for --server (default: the token in BOWSTRING_TOKEN)."`
	ServerCA   string `name:"server-ca" setting:"" client:"" type:"path" placeholder:"FILE" help:"Roots of the certificate of a --server grpc+tls://…, as PEM (default: the system's)."`
	ClientCert string `setting:"" client:"" type:"path" placeholder:"FILE" help:"Certificate to show to it, as PEM."`
	ClientKey  string `setting:"" client:"" type:"path" placeholder:"FILE" help:"Its private key, as PEM."`
	// PlaintextToken is for networks that encrypt by themselves.
	PlaintextToken bool `setting:"" client:"" help:"Send the token also to a --server grpc://… of another machine, unencrypted."`
}

// dialOptions are those of a connection to a server at addr (HOST:PORT).
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

// token is what the server that the user has named is to know the caller by, if anything.
// If there is a token in a file and one in the environment, the one that is set closer to
// the command line is used. It belongs to the server that is named where it is, if one
// is, and is sent to no other.
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

// readToken reads the token of --token-file.
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

// serverAt is the server that is named at a level, "" if none is.
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

// sameServer reports whether two addresses are of one server, reached in one way.
func sameServer(a, b string) bool {
	one, oneTLS, err := serverAddr(a)
	other, otherTLS, otherErr := serverAddr(b)
	return err == nil && otherErr == nil && oneTLS == otherTLS && strings.EqualFold(one, other)
}

// tls is whom to trust, and what to show.
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

// bearer is a token that goes with every call.
type bearer string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials. dialOptions
// has looked where it goes.
func (bearer) RequireTransportSecurity() bool { return false }

// String keeps it out of what is printed.
func (bearer) String() string { return "a token" }

// DatasetRef is datasetRef, for other programs.
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

// pinned says whether one snapshot is named.
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
