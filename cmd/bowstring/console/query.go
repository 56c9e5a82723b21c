package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"
	arrowflight "github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"bowstring/schema"
)

// query is a request for data, answered by Flight calls with the viewer's token. It is
// used by one goroutine.
type query struct {
	w      http.ResponseWriter
	r      *http.Request
	ctx    context.Context
	client *link
	form   url.Values
}

// data answers requests for data to those whom the server knows.
func (c *Console) data(f func(*query) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s, why := c.viewer(r)
		if why != nil {
			answer(w, http.StatusUnauthorized, why)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
		defer cancel()
		defer context.AfterFunc(s.ended, cancel)()
		select {
		case c.turns <- struct{}{}:
			defer func() { <-c.turns }()
		case <-ctx.Done():
			fail(w, http.StatusServiceUnavailable, "UNAVAILABLE", "many requests are worked on; try again")
			return
		}
		client, release, err := c.links.get(remote(r))
		if err == nil {
			defer release()
			if s.token != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+s.token)
			}
			q := &query{w: w, r: r, ctx: ctx, client: client}
			if q.form, err = url.ParseQuery(r.URL.RawQuery); err != nil {
				err = fmt.Errorf("%w: the address cannot be read", schema.ErrInvalid)
			} else {
				err = f(q)
			}
		}
		if err != nil {
			refuse(w, err)
		}
	}
}

// statusOf are the HTTP statuses of the codes that calls end with.
var statusOf = map[codes.Code]struct {
	status int
	name   string
}{
	codes.InvalidArgument:   {http.StatusBadRequest, "INVALID_ARGUMENT"},
	codes.NotFound:          {http.StatusNotFound, "NOT_FOUND"},
	codes.Unauthenticated:   {http.StatusUnauthorized, "UNAUTHENTICATED"},
	codes.PermissionDenied:  {http.StatusForbidden, "PERMISSION_DENIED"},
	codes.ResourceExhausted: {http.StatusTooManyRequests, "RESOURCE_EXHAUSTED"},
	codes.Unavailable:       {http.StatusServiceUnavailable, "UNAVAILABLE"},
	codes.DeadlineExceeded:  {http.StatusGatewayTimeout, "DEADLINE_EXCEEDED"},
	codes.Unimplemented:     {http.StatusNotImplemented, "UNIMPLEMENTED"},
	codes.DataLoss:          {http.StatusBadGateway, "DATA_LOSS"},
}

// whereError is how the server says where an expression is wrong; the lines after the
// first show the place as text.
var whereError = regexp.MustCompile(`(?s)where:(\d+):(\d+): ([^\n]*)`)

// refuse tells what went wrong.
func refuse(w http.ResponseWriter, err error) {
	if errors.Is(err, schema.ErrInvalid) {
		fail(w, http.StatusBadRequest, "INVALID_ARGUMENT", err.Error())
		return
	}
	st := status.Convert(err)
	p, code := problem{Code: "INTERNAL", Error: st.Message()}, http.StatusInternalServerError
	if known, ok := statusOf[st.Code()]; ok {
		code, p.Code = known.status, known.name
	}
	if m := whereError.FindStringSubmatch(p.Error); m != nil {
		p.Line, _ = strconv.Atoi(m[1])
		p.Column, _ = strconv.Atoi(m[2])
		p.Error = m[3]
	}
	answer(w, code, p)
}

// number reads a parameter that is a number from 0 to most.
func (q *query) number(name string, otherwise, most int64) (int64, error) {
	text := q.form.Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > most {
		return 0, &schema.FieldError{Field: name, Got: schema.Quote(text),
			Want: fmt.Sprintf("a number from 0 to %d", most)}
	}
	return n, nil
}

// request is what the parameters ask for; the server checks it.
func (q *query) request(columns ...string) (schema.Request, error) {
	n, err := q.number("snapshot", 0, 1<<62)
	return schema.Request{
		Dataset: q.form.Get("dataset"), Snapshot: n, Split: q.form.Get("split"),
		Where: strings.TrimSpace(q.form.Get("where")), Columns: columns,
	}, err
}

// act calls an action and returns its results.
func (q *query) act(name string, body any) ([]json.RawMessage, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(q.ctx)
	defer cancel()
	stream, err := q.client.DoAction(ctx, &arrowflight.Action{Type: name, Body: b})
	if err != nil {
		return nil, err
	}
	results := []json.RawMessage{}
	for {
		result, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return results, nil
		}
		if err != nil {
			return nil, err
		}
		if results = append(results, result.GetBody()); len(results) > maxDatasets {
			return results, nil
		}
	}
}

// one is the only result of an action.
func (q *query) one(name string, body any, into any) (json.RawMessage, error) {
	results, err := q.act(name, body)
	if err != nil {
		return nil, err
	}
	if len(results) != 1 {
		return nil, fmt.Errorf("%s gave %d results instead of one", name, len(results))
	}
	if into == nil {
		return results[0], nil
	}
	return results[0], json.Unmarshal(results[0], into)
}

// count is how many rows a request has.
func (q *query) count(req schema.Request) (int64, error) {
	req.Columns = []string{schema.PositionColumn}
	info, err := q.client.GetFlightInfo(q.ctx, &arrowflight.FlightDescriptor{Type: arrowflight.DescriptorCMD,
		Cmd: req.Marshal()})
	if err != nil {
		return 0, err
	}
	return info.GetTotalRecords(), nil
}

// read gives the record batches of a ticket to each, until it wants no more.
func (q *query) read(t schema.Ticket, each func(arrow.Record) (more bool, err error)) error {
	ctx, cancel := context.WithCancel(q.ctx)
	defer cancel()
	stream, err := q.client.DoGet(ctx, &arrowflight.Ticket{Ticket: t.Marshal()})
	if err != nil {
		return err
	}
	return records(stream, each)
}

func records(stream arrowflight.DataStreamReader, each func(arrow.Record) (more bool, err error)) error {
	reader, err := arrowflight.NewRecordReader(stream)
	if err != nil {
		return err
	}
	defer reader.Release()
	for reader.Next() {
		if more, err := each(reader.Record()); err != nil || !more {
			return err
		}
	}
	return reader.Err()
}
