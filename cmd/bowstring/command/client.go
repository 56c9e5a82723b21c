package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"strconv"
	"strings"
	"time"

	arrowflight "github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
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
		door, err := a.globals.dialOptions(*token, host, encrypted)
		if err != nil {
			return nil, err
		}
		options = append(options, door...)
		options = append(options, grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: serverSilent, Timeout: serverAnswer}))
		addr = "passthrough:///" + host
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

// message is what a person is told of err: of an error from a server only what
// the server says, without the wrapping that gRPC gives it.
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
