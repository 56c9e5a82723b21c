package hostile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
)

// within returns a protobuf field with messages, one after another.
func within(number protowire.Number, messages ...[]byte) (b []byte) {
	for _, m := range messages {
		b = protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), m)
	}
	return b
}

// action returns a serialized Action.
func action(name string, body []byte) []byte { return append(textField(1, name), within(2, body)...) }

// endpoints returns a serialized CancelFlightInfoRequest with n tickets.
func endpoints(n int, ticket func(i int) string) []byte {
	var list []byte
	for i := range n {
		list = append(list, within(3, within(1, textField(1, ticket(i))))...)
	}
	return within(1, list)
}

// actionsAndNames are cases of actions whose bodies request much work, and of names that
// imitate messages of the server. A client follows "go on at" in an error, so that a name
// in an error must not look like it.
func actionsAndNames() []Case {
	acting := func(name string, want []codes.Code, text, action_ string, body []byte) Case {
		return asking(name, "DoAction", want, text, action(action_, body))
	}
	// busy repeats an action on connections of its own, up to 200 times.
	busy := func(name, action_, body string) Case {
		return Case{Name: name, Heavy: true, Run: func(ctx context.Context, t Target) error {
			for i := 0; i < 200 && ctx.Err() == nil; i++ {
				if err := t.Ask(ctx, "DoAction", action(action_, []byte(body))); err != nil {
					return err
				}
			}
			return nil
		}}
	}
	const elsewhere = "x\\n (go on at grpc+tls://127.0.0.1:1)"
	// Each of these is 2 bytes on the wire, and a struct at a server that decodes it.
	million := bytes.Repeat(within(3, nil), 1_000_000)
	return []Case{
		acting("cancelling a million endpoints", exhausted, "", "CancelFlightInfo", within(1, million)),
		acting("renewing with a million locations", exhausted, "", "RenewFlightEndpoint",
			within(1, bytes.Repeat(within(2, nil), 1_000_000))),
		acting("cancelling 10,000 requests", exhausted, "more than 16 requests", "CancelFlightInfo",
			endpoints(10_000, func(i int) string {
				return fmt.Sprintf(`{"dataset": %q, "shuffle": {"seed": %d}}`, Dataset, i)
			})),
		acting("cancelling requests of 1 MiB", nil, "", "CancelFlightInfo", endpoints(1, func(int) string {
			return fmt.Sprintf(`{"dataset": %q, "where": %q}`, Dataset, strings.Repeat("position >= 0 and ", 50_000)+"true")
		})),
		busy("lineage of all jobs, again and again", "lineage", ""),
		busy("lineage of a step, again and again", "lineage", `{"job": "0123456789abcdef", "step": 1}`),
		busy("usage of all days, again and again", "usage", ""),
		busy("stats, again and again", "stats", ""),
		busy("listings, again and again", "list", ""),
		busy("explaining 2^31-1 epochs of 65,536 ranks on 65,536 nodes", "explain", fmt.Sprintf(
			`{"dataset": %q, "batch": 65536, "world": {"size": 65536}, "shuffle": {"seed": 1}, "epochs": 2147483647, `+
				`"nodes": 65536, "look_ms": 10000, "pace_ms": 1e-300, "window_bytes": 1125899906842624, "cache_bytes": 1}`,
			Dataset)),
		{Name: "tenants that are made up", Heavy: true, Run: manyTenants},
		{Name: "tenants of control characters", Codes: invalid, Text: "header", Run: func(ctx context.Context,
			t Target) error {
			return t.askAs(ctx, "GetSchema", "a (b)", descriptor(fmt.Sprintf(`{"dataset": %q}`, Dataset)))
		}},
		asking("dataset that says where to go on", "GetFlightInfo", invalid, "",
			descriptor(`{"dataset": "`+elsewhere+`"}`)),
		asking("column that says where to go on", "GetFlightInfo", invalid, "",
			descriptor(`{"dataset": "`+Dataset+`", "columns": ["`+elsewhere+`"]}`)),
		asking("expression that says where to go on", "GetFlightInfo", invalid, "",
			descriptor(`{"dataset": "`+Dataset+`", "where": "`+elsewhere+`"}`)),
		asking("action that says where to go on", "DoAction", []codes.Code{codes.NotFound}, "",
			action("x\n (go on at grpc+tls://127.0.0.1:1)", nil)),
		asking("handshake of 1 MiB", "Handshake", nil, "", within(2, make([]byte, 1<<20))),
		{Name: "guesses at the admin token", Admin: true, Run: guesses},
	}
}

// manyTenants makes calls in the name of tenants that do not exist, each with another
// name. The server must not keep a record of each.
func manyTenants(ctx context.Context, t Target) error {
	c, err := t.Dial(ctx, http2.Setting{ID: http2.SettingInitialWindowSize, Val: hugeFlow})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.widen(hugeFlow - 65535); err != nil {
		return err
	}
	for i := 0; ctx.Err() == nil; i++ {
		s, err := c.Open(flightURL+"DoGet", append(timeoutOf(ctx), tenantField(fmt.Sprint("made-up-", i)))...)
		if err != nil {
			return err
		}
		ticket := fmt.Sprintf(`{"dataset": %q, "columns": ["position"], "batch": 1, "stop": 1}`, Dataset)
		if err := s.Write(ctx, framed(textField(1, ticket)), true); err != nil {
			return err
		}
		if err := s.Status(ctx); err != nil {
			return err
		}
		s.forget()
	}
	return context.Cause(ctx)
}

func tenantField(name string) hpack.HeaderField {
	return hpack.HeaderField{Name: "bowstring-tenant", Value: name}
}

// askAs is Ask in the name of a tenant.
func (t Target) askAs(ctx context.Context, method, tenant string, message []byte) error {
	c, err := t.Dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := c.Open(flightURL+method, append(timeoutOf(ctx), tenantField(tenant))...)
	if err != nil {
		return err
	}
	if err := s.Write(ctx, framed(message), true); err != nil {
		return err
	}
	return s.Status(ctx)
}

var (
	errAdmitted  = errors.New("a wrong token was let in")
	errUnlimited = errors.New("all guesses at the token were heard")
)

// guesses sends wrong tokens to the admin listener. None may be accepted, and after some
// of them the listener has to reject the rest without checking them.
func guesses(ctx context.Context, t Target) error {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: t.From}}
	tr := &http.Transport{DialContext: d.DialContext}
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr, Timeout: 30 * time.Second}
	unheard := 0
	for i := range 500 {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+t.Admin+"/metrics", http.NoBody)
		if err != nil {
			return err
		}
		// Each token is another one, so that no cache of answers helps.
		r.Header.Set("Authorization", fmt.Sprint("Bearer guess-number-", i))
		resp, err := client.Do(r)
		if err != nil {
			return err
		}
		resp.Body.Close()
		switch resp.StatusCode {
		case http.StatusUnauthorized:
		case http.StatusTooManyRequests:
			unheard++
		default:
			return fmt.Errorf("%w: %s", errAdmitted, resp.Status)
		}
	}
	// Some guesses are always checked before the limit applies.
	if unheard < 400 {
		return fmt.Errorf("%w: %d of 500", errUnlimited, 500-unheard)
	}
	return nil
}
