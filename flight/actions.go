package flight

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/protobuf/proto"

	"bowstring/fetch/store"
	"bowstring/flight/catalog"
	"bowstring/flight/policy"
	"bowstring/schema"
)

// action is something that DoAction does.
type action struct {
	name  string
	about string
	run   func(*Server, context.Context, []byte, func([]byte) error) error
}

// actions lists what there is, in the order that ListActions says it. It is a
// function, as unknownAction, which the entries lead to, reads it.
func actions() []action {
	return []action{
		{"list",
			`Datasets, one result each. Body: {"dataset": NAME or "PREFIX*"}, optional. Result: {"dataset", "snapshots", "tags", "newest", "rows", "splits", "created", "source"}.`, (*Server).list},
		{"describe",
			`One snapshot. Body: {"dataset", "snapshot": N or TAG, optional}. Result: {"dataset", "snapshot", "parent", "created", "source", "rows", "splits", "columns", "blob_bytes", "manifest", "snapshots", "tags"}.`, (*Server).describe},
		{"tag",
			`Gives a snapshot a name, which moves if another has it. Body: {"dataset", "snapshot": N or TAG, optional, "name"}. Result: {"dataset", "tag", "snapshot"}.`, (*Server).tag},
		{"untag", `Removes a name. Body: {"dataset", "name"}. Result: {"dataset", "tag", "snapshot"}.`,
			(*Server).untag},
		{"tags",
			`Names of snapshots, one result each. Body: {"dataset": NAME or "PREFIX*"}, optional. Result: {"dataset", "tag", "snapshot"}.`, (*Server).tags},
		{"alter",
			`Changes columns and rows of a dataset by a new snapshot, of which blobs keep their keys. Body: {"dataset", "drop_columns": [NAME], "rename_columns": {OLD: NEW}, "delete_where": EXPRESSION, "source"}, all but the first optional. Result: {"dataset", "snapshot", "changed", "rows", "deleted"}.`, (*Server).alterDataset},
		{"drop",
			`Removes a snapshot that has no tag, or without a number the dataset. Body: {"dataset", "snapshot": N, optional}. Result: {"dataset", "dropped": [N]}.`, (*Server).drop},
		{"gc",
			`Frees the blobs that nothing refers to any more. Body: {"dry_run": true}, optional. Result: {"live_blobs", "live_bytes", "dead_blobs", "dead_bytes", "freed_bytes", "moved_bytes"}.`, (*Server).gc},
		{"warm",
			`Fills the server's spill with the samples of a request, in the order in which it uses them, until all are there or it would keep no more. Body: a request, as in a CMD descriptor. Results, a few a second and one at the end: {"job", "rows", "seen", "there", "stored", "bytes", "failed", "full", "done", "nodes": [{"node", "there", "stored", "bytes", "failed", "full", "done", "error"}] of a cluster}.`, (*Server).warm},
		{"explain",
			`How a job will run, before it does and beside what is measured while it does. Body: a request, as in a CMD descriptor, and "pace_ms", "epochs", "nodes", "cache_bytes", "window_bytes", "look_ms", "rates", each optional. Result: {"job", "plan", "dataset", "conditions", "prediction", "unknown", "running", "rates", "rates_from"}.`, (*Server).explain},
		{"calibrate",
			`Measures the store and the disk of the spill, or sets rates, for explain. Body: {"dataset", "seconds", "busy", "rates"}, each optional. Result: {"store", "spill", "node", "network", "uncertainty", "reads", "bytes", "dataset", "cpu_ns"}.`, (*Server).calibrate},
		{"stats", `Counters of server, store and engine, limits, running streams. Body: none.`, (*Server).stats},
		{"usage",
			`What tenants have used, by day, tenant and dataset, one result each: the caller's own, or all for who has the right admin. Body: {"tenant", "dataset", "since": "YYYY-MM-DD", "until"}, each optional. Result: {"day", "tenant", "dataset", "streams", "rows", "bytes", "store_bytes", "rows_in", "bytes_in", "seconds"}.`, (*Server).usage},
		{"samenode",
			`Where clients on this node are given memory that the server shares with them. Body: none. Result: {"version", "server", "socket", "uid", "caller", "key"}, or none where there is no such way.`, (*Server).sameNode},
		{"nodes",
			`Addresses of the other nodes of the server's cluster, at which streams may go on. Body: none. Result: {"locations": [URI]}.`, (*Server).otherNodes},
		{"lineage",
			`Which samples a step of a job held, on which rank, as far as this server has handed them out; without a step, the jobs on record. Body: {"job": its name or a plan's, "epoch": optional, "step", "rank": optional}. Results: {"since", "node", "others"}, then {"job", "dataset", "snapshot", "epoch", "step", "rank", "world", "row", "of", "positions", "ids", "faults", "stands", "stream"} for each piece of a share.`, (*Server).lineage},
		{"cancel", `Ends the running streams of a plan. Body: {"plan"}. Result: {"plan", "cancelled": COUNT}.`,
			(*Server).cancel},
		{flight.CancelFlightInfoActionType,
			`Ends the running streams of a FlightInfo. Body: protobuf CancelFlightInfoRequest. Result: protobuf CancelFlightInfoResult.`, (*Server).cancelFlightInfo},
		{flight.RenewFlightEndpointActionType,
			`Gives an endpoint a new expiration time. Body: protobuf RenewFlightEndpointRequest. Result: protobuf FlightEndpoint.`, (*Server).renewFlightEndpoint},
	}
}

// ListActions sends the actions that there are.
func (s *Server) ListActions(_ *flight.Empty, stream flight.FlightService_ListActionsServer) error {
	for _, a := range actions() {
		if err := stream.Send(&flight.ActionType{Type: a.name, Description: a.about}); err != nil {
			return err
		}
	}
	return nil
}

// DoAction runs an action.
func (s *Server) DoAction(a *flight.Action, stream flight.FlightService_DoActionServer) error {
	list := actions()
	names := make([]string, len(list))
	for i, known := range list {
		if known.name == a.GetType() {
			if c := callFrom(stream.Context()); c != nil {
				s.calls.act(c, known.name)
			}
			return known.run(s, stream.Context(), a.GetBody(), func(b []byte) error {
				return stream.Send(&flight.Result{Body: b})
			})
		}
		names[i] = known.name
	}
	hint := ""
	if n := schema.Nearest(a.GetType(), names); n != "" {
		hint = fmt.Sprintf(" (did you mean %q?)", n)
	}
	return fmt.Errorf("%w: action %s%s; list_actions names those there are", schema.ErrNotFound,
		schema.Quote(a.GetType()), hint)
}

// body decodes the body of an action; an empty one is an empty object.
func body(b []byte, v any) error {
	if len(b) == 0 {
		b = []byte("{}")
	}
	return schema.DecodeJSON("body", b, v)
}

// encodeJSON makes the JSON of an answer.
func encodeJSON(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encoding the answer: %w", err)
	}
	return b, nil
}

// sendJSON sends one result.
func sendJSON(send func([]byte) error, v any) error {
	b, err := encodeJSON(v)
	if err != nil {
		return err
	}
	return send(b)
}

// refOf reads a body that names a dataset or one of its snapshots.
func refOf(b []byte) (ref catalog.Ref, err error) {
	if err := body(b, &ref); err != nil {
		return ref, err
	}
	return ref, ref.Check()
}

type splitInfo struct {
	Name   string         `json:"name"`
	Rows   int64          `json:"rows"`
	Ranges []schema.Range `json:"ranges,omitempty"`
}

// splitsOf describes the splits that exist for a caller, and where they lie unless there
// are rows in them that do not.
func splitsOf(v *catalog.View, ranges bool) []splitInfo {
	out := make([]splitInfo, len(v.Splits))
	for i, sp := range v.Splits {
		out[i] = splitInfo{Name: sp.Name, Rows: sp.Seen}
		if ranges && !v.Within.HidesRows() {
			out[i].Ranges = sp.Ranges
		}
	}
	return out
}

func (s *Server) list(ctx context.Context, b []byte, send func([]byte) error) error {
	filter, err := parseFilter("body", b)
	if err != nil {
		return err
	}
	type dataset struct {
		Dataset   string      `json:"dataset"`
		Snapshots []int64     `json:"snapshots"`
		Tags      []store.Tag `json:"tags"`
		Newest    int64       `json:"newest"`
		Rows      int64       `json:"rows"`
		Splits    []splitInfo `json:"splits"`
		Created   time.Time   `json:"created"`
		Source    string      `json:"source"`
	}
	return s.catalog(ctx).Each(ctx, filter, func(d store.Dataset, v *catalog.View) error {
		snap := v.Snap
		return sendJSON(send, dataset{
			Dataset: d.Name, Snapshots: d.Snapshots, Tags: append([]store.Tag{}, d.Tags...), Newest: snap.Number,
			Rows:   v.Rows,
			Splits: splitsOf(v, false), Created: snap.Created.UTC(), Source: snap.Source,
		})
	})
}

// columnInfo describes a column of a dataset.
type columnInfo struct {
	Name     string   `json:"name"`
	Type     string   `json:"type"`
	Nullable bool     `json:"nullable"`
	Kind     string   `json:"kind"` // "id", "metadata" or "blob"
	Media    string   `json:"media,omitempty"`
	Classes  []string `json:"classes,omitempty"`
	Bytes    *int64   `json:"bytes,omitempty"` // of all blobs of the column
}

// describedColumns describes the columns that exist for the caller, and sums the blobs up.
func describedColumns(ctx context.Context, v *catalog.View) (columns []columnInfo, blobBytes int64, err error) {
	blob := -1
	for _, f := range v.Snap.Schema.Fields() {
		if schema.IsBlob(f) {
			blob++
		}
		if v.Within.Hides(v.Snap.Schema, f.Name) {
			continue
		}
		c := columnInfo{Name: f.Name, Type: f.Type.String(), Nullable: f.Nullable, Kind: "metadata"}
		switch {
		case f.Name == schema.IDColumn:
			c.Kind = "id"
		case schema.IsBlob(f):
			bytes, err := v.BlobBytes(ctx, blob, f.Name)
			if err != nil {
				return nil, 0, err
			}
			blobBytes += bytes
			c.Kind, c.Media, c.Bytes = "blob", schema.Media(f), &bytes
		default:
			c.Classes = schema.Classes(f)
		}
		columns = append(columns, c)
	}
	return columns, blobBytes, nil
}

func (s *Server) describe(ctx context.Context, b []byte, send func([]byte) error) error {
	ref, err := refOf(b)
	if err != nil {
		return err
	}
	cat := s.catalog(ctx)
	v, err := cat.View(ctx, ref, policy.List)
	if err != nil {
		return err
	}
	snap := v.Snap
	all, err := cat.Dataset(ctx, ref.Dataset)
	if err != nil {
		return err
	}
	type manifest struct {
		Chunks int   `json:"chunks"`
		Bytes  int64 `json:"bytes"`
	}
	var m manifest
	if v.Within == nil { // its size tells of what is hidden
		m.Chunks = len(snap.Chunks)
		for _, c := range snap.Chunks {
			m.Bytes += c.ManifestBytes()
		}
	}
	columns, blobBytes, err := describedColumns(ctx, v)
	if err != nil {
		return err
	}
	return sendJSON(send, struct {
		Dataset   string       `json:"dataset"`
		Snapshot  int64        `json:"snapshot"`
		Parent    int64        `json:"parent"`
		Created   time.Time    `json:"created"`
		Source    string       `json:"source"`
		Rows      int64        `json:"rows"`
		Splits    []splitInfo  `json:"splits"`
		Columns   []columnInfo `json:"columns"`
		BlobBytes int64        `json:"blob_bytes"`
		Manifest  manifest     `json:"manifest"`
		Snapshots []int64      `json:"snapshots"`
		Tags      []store.Tag  `json:"tags"`
	}{
		snap.Dataset, snap.Number, snap.Parent, snap.Created.UTC(), snap.Source, v.Rows,
		splitsOf(v, true), columns, blobBytes, m, all.Snapshots, all.Tags,
	})
}

func (s *Server) drop(ctx context.Context, b []byte, send func([]byte) error) error {
	ref, err := refOf(b)
	if err != nil {
		return err
	}
	dropped, err := s.catalog(ctx).Drop(ctx, ref)
	if err != nil {
		return err
	}
	return sendJSON(send, struct {
		Dataset string  `json:"dataset"`
		Dropped []int64 `json:"dropped"`
	}{ref.Dataset, dropped})
}

func (s *Server) gc(ctx context.Context, b []byte, send func([]byte) error) error {
	var opts struct {
		DryRun bool `json:"dry_run"`
	}
	if err := body(b, &opts); err != nil {
		return err
	}
	report, err := s.catalog(ctx).Collect(ctx, store.GCOptions{DryRun: opts.DryRun})
	if err != nil {
		return err
	}
	return sendJSON(send, report)
}

func (s *Server) warm(ctx context.Context, b []byte, send func([]byte) error) error {
	req, err := schema.ParseRequest(b)
	if err != nil {
		return err
	}
	cat := s.catalog(ctx)
	if err := cat.May(ctx, req.Dataset, policy.Read); err != nil {
		return err
	}
	if !cat.HasSpill() {
		return fmt.Errorf("%w: this server has no spill to warm; it is served with one by --spill DIR",
			schema.ErrNotFound)
	}
	job, err := cat.Open(ctx, req, policy.Read)
	if err != nil {
		return err
	}
	defer job.Close()
	return s.warmAll(ctx, cat, job, send)
}

// renewFlightEndpoint is Flight's own.
func (s *Server) renewFlightEndpoint(ctx context.Context, b []byte, send func([]byte) error) error {
	var req flight.RenewFlightEndpointRequest
	if err := s.unmarshal(ctx, b, &req); err != nil {
		return err
	}
	e := req.GetEndpoint()
	t, err := schema.ParseTicket(e.GetTicket().GetTicket())
	if err != nil {
		return err
	}
	if _, err := s.catalog(ctx).Exists(ctx, catalog.Ref{Dataset: t.Dataset, Snapshot: t.Snapshot, Tag: t.Tag}, policy.Read); err != nil {
		return err
	}
	e.ExpirationTime = s.expiration()
	return sendProto(send, e)
}

func sendProto(send func([]byte) error, m proto.Message) error {
	b, err := proto.Marshal(m)
	if err != nil {
		return errors.Join(errors.New("encoding the answer"), err)
	}
	return send(b)
}
