package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	arrowflight "github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"bowstring/cmd/bowstring/export"
	"bowstring/schema"
)

// query is one request for data, which Flight calls with the viewer's token answer. It
// belongs to the goroutine of the request.
type query struct {
	w http.ResponseWriter
	r *http.Request
	// ctx ends with the request, with the session, and after requestTimeout.
	ctx    context.Context
	client *link
	form   url.Values
}

// data wraps f for viewers with a session. It limits the requests in progress, connects
// to the server with the viewer's token, and turns an error of f into an answer. f must
// not have answered if it returns an error.
func (c *Console) data(f func(*query) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s, why := c.viewer(r)
		if why != nil {
			answer(w, http.StatusUnauthorized, why)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
		defer cancel()
		// If the token is revoked, the answer in progress ends as well.
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

// statusOf maps the gRPC codes of failed calls to HTTP statuses and to their names in the
// answer. Other codes become 500 INTERNAL.
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

// whereError matches how the server reports the place of an error in an expression. The
// lines after the first show the place as text.
var whereError = regexp.MustCompile(`(?s)where:(\d+):(\d+): ([^\n]*)`)

// refuse answers with an error. Errors of this package wrap schema.ErrInvalid; all others
// have a gRPC status.
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

// number parses a parameter as a number from 0 to most. An absent parameter is otherwise.
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

// request assembles a request from the parameters. The server validates it, so that there
// is one set of rules.
func (q *query) request(columns ...string) (schema.Request, error) {
	n, err := q.number("snapshot", 0, 1<<62)
	return schema.Request{
		Dataset: q.form.Get("dataset"), Snapshot: n, Split: q.form.Get("split"),
		Where: strings.TrimSpace(q.form.Get("where")), Columns: columns,
	}, err
}

// act calls an action and returns its results. It stops after maxDatasets+1 results, from
// which callers see that there are more.
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

// one calls an action that has exactly one result, and decodes the result into into
// unless that is nil.
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

// count returns the number of rows of a request. GetFlightInfo states it, so that no rows
// are sent.
func (q *query) count(req schema.Request) (int64, error) {
	req.Columns = []string{schema.PositionColumn}
	info, err := q.client.GetFlightInfo(q.ctx, &arrowflight.FlightDescriptor{Type: arrowflight.DescriptorCMD,
		Cmd: req.Marshal()})
	if err != nil {
		return 0, err
	}
	return info.GetTotalRecords(), nil
}

// read passes the record batches of a ticket to each, until each returns false. A record
// is valid only during the call.
func (q *query) read(t schema.Ticket, each func(arrow.Record) (more bool, err error)) error {
	ctx, cancel := context.WithCancel(q.ctx)
	defer cancel()
	stream, err := q.client.DoGet(ctx, &arrowflight.Ticket{Ticket: t.Marshal()})
	if err != nil {
		return err
	}
	return records(stream, each)
}

// records passes the record batches of a stream to each, until each returns false.
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

const (
	maxDatasets = 5000 // datasets in a list
	maxPage     = 200  // samples on a page
	maxCell     = 2000 // bytes of a text on the page
	// The largest integer up to which JavaScript's numbers are exact. Others are sent as
	// text.
	maxExact = 1 << 53
)

// snapshotBody is the body of actions on a snapshot. Snapshot 0 is the newest.
type snapshotBody struct {
	Dataset  string `json:"dataset"`
	Snapshot int64  `json:"snapshot,omitempty"`
}

// datasets answers with the datasets that the viewer may see.
func (q *query) datasets() error {
	results, err := q.act("list", struct{}{})
	if err != nil {
		return err
	}
	more := len(results) > maxDatasets
	if more {
		results = results[:maxDatasets]
	}
	answer(q.w, http.StatusOK, map[string]any{"datasets": results, "more": more})
	return nil
}

// dataset answers with the server's description of a snapshot.
func (q *query) dataset() error {
	n, err := q.number("snapshot", 0, 1<<62)
	if err != nil {
		return err
	}
	result, err := q.one("describe", snapshotBody{q.form.Get("dataset"), n}, nil)
	if err != nil {
		return err
	}
	answer(q.w, http.StatusOK, result)
	return nil
}

// samples answers with one page of the samples of a request, in order of position. A page
// is a step of a ticket with the page size as its batch, so that the server seeks to it
// instead of skipping rows.
func (q *query) samples() error {
	size, err := q.number("size", 48, maxPage)
	if err != nil {
		return err
	}
	page, err := q.number("page", 0, 1<<40)
	if err != nil {
		return err
	}
	size = max(size, 1)
	req, err := q.request(append([]string{schema.PositionColumn}, q.form["column"]...)...)
	if err != nil {
		return err
	}
	total, err := q.count(req)
	if err != nil {
		return err
	}
	rows := []export.Object{}
	if page*size < total {
		req.Batch = size
		stop := page + 1
		err = q.read(schema.Ticket{Request: req, Step: page, Stop: &stop}, func(rec arrow.Record) (bool, error) {
			for i := range int(rec.NumRows()) {
				rows = append(rows, row(rec, i))
			}
			return true, nil
		})
		if err != nil {
			return err
		}
	}
	answer(q.w, http.StatusOK, map[string]any{"total": total, "page": page, "size": size, "rows": rows})
	return nil
}

// row returns a row as the page shows it: long texts are cut, and numbers that JavaScript
// or JSON cannot represent are texts.
func row(rec arrow.Record, i int) export.Object {
	var o export.Object
	for at, f := range rec.Schema().Fields() {
		o.Add(f.Name, shown(export.Value(f, rec.Column(at), i)))
	}
	return o
}

// shown prepares a value for the page, also within structs. It changes maps in place.
func shown(v any) any {
	switch v := v.(type) {
	case string:
		return short(v, maxCell)
	case []byte:
		return v[:min(len(v), maxCell)]
	case int64:
		if v > maxExact || v < -maxExact {
			return strconv.FormatInt(v, 10)
		}
	case uint64:
		if v > maxExact {
			return strconv.FormatUint(v, 10)
		}
	case map[string]any: // a struct
		for name, of := range v {
			v[name] = shown(of)
		}
	case json.RawMessage:
		if len(v) > maxCell {
			return short(string(v), maxCell)
		}
	}
	return v
}

// short cuts a text to at most most bytes, at the boundary of a character, and marks the
// cut.
func short(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// maxBlob is the largest blob in bytes that is sent. The whole blob is held in memory.
const maxBlob = 16 << 20

// blob sends a stored blob unchanged, if its first bytes are those of an image or a
// sound.
//
// A blob is data of users and may be hostile. The media type comes from a fixed list
// without scripts, nosniff makes the browser keep to it, and a policy of its own
// sandboxes the answer.
func (q *query) blob() error {
	n, err := q.number("position", 0, 1<<62)
	if err != nil {
		return err
	}
	column := q.form.Get("column")
	req, err := q.request(column)
	if err != nil {
		return err
	}
	if column == "" {
		return &schema.FieldError{Field: "column", Got: "nothing", Want: "the name of a column of images or sounds"}
	}
	// A position counts in the whole snapshot, so filters do not apply.
	req.Where, req.Split = "", ""
	req.Selection, req.Batch = &schema.SelectionRef{Positions: []int64{n}}, 1
	var content []byte
	found := false
	err = q.read(schema.Ticket{Request: req}, func(rec arrow.Record) (bool, error) {
		if rec.NumRows() != 1 {
			return true, nil
		}
		if b, ok := rec.Column(0).(*array.LargeBinary); ok && b.IsValid(0) {
			content, found = bytes.Clone(b.Value(0)), true
		}
		return false, nil
	})
	if status.Code(err) == codes.ResourceExhausted && !found {
		fail(q.w, http.StatusRequestEntityTooLarge, "RESOURCE_EXHAUSTED",
			"it is too large to be shown here, or the server is busy")
		return nil
	}
	if err != nil {
		return err
	}
	if !found {
		fail(q.w, http.StatusNotFound, "NOT_FOUND", "there is no such blob")
		return nil
	}
	kind := mediaType(content)
	if kind == "" || len(content) > maxBlob {
		fail(q.w, http.StatusUnsupportedMediaType, "INVALID_ARGUMENT", "it is no image or sound that browsers show")
		return nil
	}
	h := q.w.Header()
	h.Set("Content-Type", kind)
	h.Set("Content-Disposition", "inline")
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	http.ServeContent(q.w, q.r, "", time.Time{}, bytes.NewReader(content)) // players request ranges
	return nil
}

// mediaType returns the media type of a blob by its first bytes; "" if it is not on the
// list. The list has the images and sounds that browsers show and that cannot carry
// scripts. SVG can, and is absent.
func mediaType(b []byte) string {
	switch kind := http.DetectContentType(b); kind {
	case "image/jpeg", "image/png", "image/gif", "image/webp", "image/bmp", "audio/mpeg", "audio/wave":
		return kind
	case "application/ogg":
		return "audio/ogg"
	}
	switch {
	case bytes.HasPrefix(b, []byte("fLaC")):
		return "audio/flac"
	case len(b) > 2 && b[0] == 0xff && b[1]&0xe6 == 0xe2: // MPEG layer 3 without a tag
		return "audio/mpeg"
	case len(b) > 12 && (string(b[4:12]) == "ftypavif" || string(b[4:12]) == "ftypavis"):
		return "image/avif"
	}
	return ""
}

// explainBody is the body of the action explain. LookMS is in milliseconds.
type explainBody struct {
	schema.Request
	PaceMS float64 `json:"pace_ms,omitempty"`
	Epochs int64   `json:"epochs,omitempty"`
	Nodes  int64   `json:"nodes,omitempty"`
	LookMS int64   `json:"look_ms"`
}

// lookMS is how long the server observes a running job for an explanation, in
// milliseconds. The viewer waits for it.
const lookMS = 1000

// explain answers with a prediction of how a job would run, and with how a running one
// does.
func (q *query) explain() error {
	req, err := q.request()
	if err != nil {
		return err
	}
	body := explainBody{Request: req, LookMS: lookMS}
	var ranks, pace int64
	for name, to := range map[string]*int64{"batch": &body.Batch, "ranks": &ranks, "epochs": &body.Epochs,
		"nodes": &body.Nodes, "pace_ms": &pace} {
		if *to, err = q.number(name, 0, schema.MaxBatch); err != nil {
			return err
		}
	}
	if q.form.Get("seed") != "" {
		n, err := q.number("seed", 0, 1<<62)
		if err != nil {
			return err
		}
		body.Shuffle = &schema.Shuffle{Seed: uint64(n)}
	}
	if ranks > 1 {
		body.World = &schema.World{Size: ranks}
	}
	body.PaceMS = float64(pace)
	result, err := q.one("explain", body, nil)
	if err != nil {
		return err
	}
	answer(q.w, http.StatusOK, result)
	return nil
}

// lineageBody is the body of the action lineage. A nil field does not restrict the
// search.
type lineageBody struct {
	Job   string  `json:"job,omitempty"`
	Epoch *uint64 `json:"epoch,omitempty"`
	Step  *int64  `json:"step,omitempty"`
	Rank  *int64  `json:"rank,omitempty"`
}

// lineage answers with the recorded jobs, or with the content of one step of a job.
func (q *query) lineage() error {
	body := lineageBody{Job: q.form.Get("job")}
	for name, to := range map[string]**int64{"step": &body.Step, "rank": &body.Rank} {
		if q.form.Get(name) == "" {
			continue
		}
		n, err := q.number(name, 0, 1<<62)
		if err != nil {
			return err
		}
		*to = &n
	}
	if text := q.form.Get("epoch"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return &schema.FieldError{Field: "epoch", Got: schema.Quote(text), Want: "a number from 0 to 2^64-1"}
		}
		body.Epoch = &n
	}
	results, err := q.act("lineage", body)
	if err != nil {
		return err
	}
	if len(results) == 0 {
		results = []json.RawMessage{json.RawMessage("{}")}
	}
	more := len(results) > maxDatasets
	answer(q.w, http.StatusOK, map[string]any{"record": results[0], "found": results[1:], "more": more})
	return nil
}

// cluster answers with the server's view of its cluster. It is null if the server is in
// no cluster, or if the viewer may not see it. Only this part of the statistics is passed
// on.
func (q *query) cluster() error {
	var stats struct {
		Cluster json.RawMessage `json:"cluster"`
		Engine  struct {
			FellBack  int64 `json:"stood_in"`
			PeerReads int64 `json:"peer_reads"`
		} `json:"engine"`
	}
	if _, err := q.one("stats", struct{}{}, &stats); err != nil {
		return err
	}
	answer(q.w, http.StatusOK, map[string]any{"cluster": stats.Cluster, "stood_in": stats.Engine.FellBack,
		"peer_reads": stats.Engine.PeerReads})
	return nil
}

// maxHistory is how many of the newest snapshots a history covers. Each costs two calls.
const maxHistory = 50

// occurrence is a sample in one snapshot.
type occurrence struct {
	Snapshot int64          `json:"snapshot"`
	Created  time.Time      `json:"created"`
	Row      *export.Object `json:"row"` // null if the snapshot lacks the sample
}

// history answers with the newest snapshots and what each contains of a sample.
func (q *query) history() error {
	id, err := schema.ParseID(q.form.Get("id"))
	if err != nil {
		return &schema.FieldError{Field: "id", Got: schema.Quote(q.form.Get("id")), Want: "the UUID of a sample"}
	}
	var about described
	if _, err := q.one("describe", snapshotBody{q.form.Get("dataset"), 0}, &about); err != nil {
		return err
	}
	slices.Sort(about.Snapshots)
	slices.Reverse(about.Snapshots)
	list := []occurrence{}
	for _, n := range about.Snapshots[:min(len(about.Snapshots), maxHistory)] {
		one, err := q.find(n, id)
		if status.Code(err) == codes.NotFound {
			continue // it was dropped meanwhile
		}
		if err != nil {
			return err
		}
		list = append(list, one)
	}
	answer(q.w, http.StatusOK, map[string]any{"id": schema.FormatID(id), "snapshots": list,
		"more": len(about.Snapshots) > maxHistory})
	return nil
}

// described is the part of a snapshot's description that is used here.
type described struct {
	Snapshot  int64     `json:"snapshot"`
	Created   time.Time `json:"created"`
	Snapshots []int64   `json:"snapshots"`
	Columns   []struct {
		Name string `json:"name"`
		Kind string `json:"kind"`
	} `json:"columns"`
}

// find looks a sample up in a snapshot. It returns the metadata, and the sizes and keys
// of the blobs. It does not read blobs: the keys show whether a blob has changed.
func (q *query) find(snapshot int64, id schema.ID) (occurrence, error) {
	var about described
	if _, err := q.one("describe", snapshotBody{q.form.Get("dataset"), snapshot}, &about); err != nil {
		return occurrence{}, err
	}
	columns := []string{schema.PositionColumn, schema.SplitColumn}
	for _, c := range about.Columns {
		switch c.Kind {
		case "blob": // equal keys are equal blobs
			columns = append(columns, c.Name+".size", c.Name+".key")
		case "metadata":
			columns = append(columns, c.Name)
		}
	}
	one := occurrence{Snapshot: snapshot, Created: about.Created}
	command, err := json.Marshal(map[string]any{"take": map[string]any{"dataset": q.form.Get("dataset"),
		"snapshot": snapshot, "columns": columns}})
	if err != nil {
		return one, err
	}
	stream, err := q.client.DoExchange(q.ctx)
	if err != nil {
		return one, err
	}
	if err := ask(stream, command, id); err != nil && !errors.Is(err, io.EOF) { // the server's own error is read below
		return one, err
	}
	err = records(stream, func(rec arrow.Record) (bool, error) {
		if rec.NumRows() == 1 {
			r := row(rec, 0)
			one.Row = &r
		}
		return true, nil
	})
	if status.Code(err) == codes.NotFound {
		err = nil // the snapshot exists, so the sample is missing
	}
	return one, err
}

// ask sends the one id whose sample is wanted, as the request of a "take" exchange.
func ask(stream arrowflight.FlightService_DoExchangeClient, command []byte, id schema.ID) error {
	b := array.NewFixedSizeBinaryBuilder(memory.DefaultAllocator, &arrow.FixedSizeBinaryType{ByteWidth: len(id)})
	defer b.Release()
	b.Append(id[:])
	ids := b.NewArray()
	defer ids.Release()
	s := arrow.NewSchema([]arrow.Field{schema.IDField()}, nil)
	rec := array.NewRecord(s, []arrow.Array{ids}, 1)
	defer rec.Release()
	w := arrowflight.NewRecordWriter(stream, ipc.WithSchema(s))
	w.SetFlightDescriptor(&arrowflight.FlightDescriptor{Type: arrowflight.DescriptorCMD, Cmd: command})
	if err := w.Write(rec); err != nil {
		return err
	}
	return errors.Join(w.Close(), stream.CloseSend())
}
