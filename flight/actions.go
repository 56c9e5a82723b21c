package flight

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/protobuf/proto"

	"bowstring/fetch"
	"bowstring/fetch/ingest"
	"bowstring/fetch/store"
	"bowstring/flight/audit"
	"bowstring/flight/catalog"
	"bowstring/flight/policy"
	"bowstring/flight/upload"
	"bowstring/schema"
)

// action is an action of DoAction: its name, its description for ListActions, and its
// handler. The handler gets the body, and calls the function with each result.
type action struct {
	name  string
	about string
	run   func(actionHandler, context.Context, []byte, func([]byte) error) error
}

// actionHandler implements ListActions and DoAction.
type actionHandler struct{ *Server }

// actions returns all actions, in the order of ListActions. It is a function and not a
// variable, because the handlers refer to it through unknownAction, which would be an
// initialization cycle.
func actions() []action {
	return []action{
		{"list",
			`Datasets, one result each. Body: {"dataset": NAME or "PREFIX*"}, optional. Result: {"dataset", "snapshots", "tags", "newest", "rows", "splits", "created", "source"}.`, (actionHandler).list},
		{"describe",
			`One snapshot. Body: {"dataset", "snapshot": N or TAG, optional}. Result: {"dataset", "snapshot", "parent", "created", "source", "rows", "splits", "columns", "blob_bytes", "manifest", "proof", "snapshots", "tags"}.`, (actionHandler).describe},
		{"tag",
			`Gives a snapshot a name, which moves if another has it. Body: {"dataset", "snapshot": N or TAG, optional, "name"}. Result: {"dataset", "tag", "snapshot"}.`, (actionHandler).tag},
		{"untag", `Removes a name. Body: {"dataset", "name"}. Result: {"dataset", "tag", "snapshot"}.`,
			(actionHandler).untag},
		{"tags",
			`Names of snapshots, one result each. Body: {"dataset": NAME or "PREFIX*"}, optional. Result: {"dataset", "tag", "snapshot"}.`, (actionHandler).tags},
		{"steer",
			`Changes the weights of a mixture's run while it goes on, from the first step that no stream may have served. Body: {"dataset": that of the first source, "run", "weights": {SOURCE: N}, "over", "pieces", "from_step"}, the last three optional. Result: as of runs, and "step".`, (actionHandler).steer},
		{"runs",
			`Runs by mixtures whose first source is a dataset, one result each. Body: {"dataset"}. Result: {"dataset", "run", "owner", "settled", "sources", "changes", "steered", "created", "expires"}.`, (actionHandler).runs},
		{"alter",
			`Changes columns and rows of a dataset by a new snapshot, of which blobs keep their keys. Body: {"dataset", "drop_columns": [NAME], "rename_columns": {OLD: NEW}, "delete_where": EXPRESSION, "source"}, all but the first optional. Result: {"dataset", "snapshot", "changed", "rows", "deleted"}.`, (actionHandler).alterDataset},
		{"drop",
			`Removes a snapshot that has no tag, or without a number the dataset. Body: {"dataset", "snapshot": N, optional}. Result: {"dataset", "dropped": [N]}.`, (actionHandler).drop},
		{"gc",
			`Frees the blobs that nothing refers to any more. Body: {"dry_run": true}, optional. Result: {"live_blobs", "live_bytes", "dead_blobs", "dead_bytes", "freed_bytes", "moved_bytes"}.`, (actionHandler).gc},
		{"warm",
			`Fills the server's spill with the samples of a request, in the order in which it uses them, until all are there or it would keep no more. Body: a request, as in a CMD descriptor. Results, a few a second and one at the end: {"job", "rows", "seen", "there", "stored", "bytes", "failed", "full", "done", "nodes": [{"node", "there", "stored", "bytes", "failed", "full", "done", "error"}] of a cluster}.`, (actionHandler).warm},
		{"explain",
			`How a job will run, before it does and beside what is measured while it does. Body: a request, as in a CMD descriptor, and "pace_ms", "epochs", "nodes", "cache_bytes", "window_bytes", "look_ms", "rates", each optional. Result: {"job", "plan", "dataset", "conditions", "prediction", "unknown", "running", "rates", "rates_from"}.`, (actionHandler).explain},
		{"calibrate",
			`Measures the store and the disk of the spill, or sets rates, for explain. Body: {"dataset", "seconds", "busy", "rates"}, each optional. Result: {"store", "spill", "node", "network", "uncertainty", "reads", "bytes", "dataset", "cpu_ns"}.`, (actionHandler).calibrate},
		{"stats", `Counters of server, store and engine, limits, running streams. Body: none.`, (actionHandler).stats},
		{"usage",
			`What tenants have used, by day, tenant and dataset, one result each: the caller's own, or all for who has the right admin. Body: {"tenant", "dataset", "since": "YYYY-MM-DD", "until"}, each optional. Result: {"day", "tenant", "dataset", "streams", "rows", "bytes", "store_bytes", "rows_in", "bytes_in", "seconds"}.`, (actionHandler).usage},
		{"shm",
			`Where clients on this node are given memory that the server shares with them. Body: none. Result: {"version", "server", "socket", "uid", "caller", "key"}, or none where there is no such way.`, (actionHandler).shm},
		{"nodes",
			`Addresses of the other nodes of the server's cluster, at which streams may go on. Body: none. Result: {"locations": [URI]}.`, (actionHandler).otherNodes},
		{"lineage",
			`Which samples a step of a job held, on which rank, as far as this server has handed them out; without a step, the jobs on record. Body: {"job": its name or a plan's, "epoch": optional, "step", "rank": optional}. Results: {"since", "node", "others"}, then {"job", "dataset", "snapshot", "epoch", "step", "rank", "world", "row", "of", "positions", "ids", "faults", "stands", "stream"} for each piece of a share.`, (actionHandler).lineage},
		{"cancel", `Ends the running streams of a plan. Body: {"plan"}. Result: {"plan", "cancelled": COUNT}.`,
			(actionHandler).cancel},
		{flight.CancelFlightInfoActionType,
			`Ends the running streams of a FlightInfo. Body: protobuf CancelFlightInfoRequest. Result: protobuf CancelFlightInfoResult.`, (actionHandler).cancelFlightInfo},
		{flight.RenewFlightEndpointActionType,
			`Gives an endpoint a new expiration time. Body: protobuf RenewFlightEndpointRequest. Result: protobuf FlightEndpoint.`, (actionHandler).renewFlightEndpoint},
	}
}

// ListActions sends all actions.
func (s actionHandler) ListActions(_ *flight.Empty, stream flight.FlightService_ListActionsServer) error {
	for _, a := range actions() {
		if err := stream.Send(&flight.ActionType{Type: a.name, Description: a.about}); err != nil {
			return err
		}
	}
	return nil
}

// DoAction runs an action. An unknown name fails with schema.ErrNotFound and the nearest
// known name.
func (s actionHandler) DoAction(a *flight.Action, stream flight.FlightService_DoActionServer) error {
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

// body decodes the JSON body of an action; an empty body is an empty object.
func body(b []byte, v any) error {
	if len(b) == 0 {
		b = []byte("{}")
	}
	return schema.DecodeJSON("body", b, v)
}

// encodeJSON returns the JSON of an answer.
func encodeJSON(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encoding the answer: %w", err)
	}
	return b, nil
}

// sendJSON sends v as one result.
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

// splitInfo is the JSON of a split. Ranges are its positions in the snapshot.
type splitInfo struct {
	Name   string         `json:"name"`
	Rows   int64          `json:"rows"`
	Ranges []schema.Range `json:"ranges,omitempty"`
}

// splitsOf describes the splits that exist for a caller. With ranges it includes their
// positions, unless the snapshot has rows hidden from the caller: gaps between the ranges
// would reveal them.
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

// list sends the newest snapshot of each dataset that exists for the caller. Unless a rule
// hides rows, it reads only the record of each snapshot: a listing of many datasets could
// not afford more. Therefore splits have no positions here.
func (s actionHandler) list(ctx context.Context, b []byte, send func([]byte) error) error {
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
	// Bytes is the total size of the column's blobs. It is set for blob columns only.
	Bytes *int64 `json:"bytes,omitempty"`
}

// describedColumns describes the columns that exist for the caller, and returns the total
// size of their blobs.
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

// describe sends everything about one snapshot that exists for the caller. Figures that
// count hidden rows are omitted, or computed for the visible rows only.
func (s actionHandler) describe(ctx context.Context, b []byte, send func([]byte) error) error {
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
	if v.Within == nil { // otherwise its size would reveal hidden rows
		m.Chunks = len(snap.Chunks)
		for _, c := range snap.Chunks {
			m.Bytes += c.ManifestBytes()
		}
	}
	columns, blobBytes, err := describedColumns(ctx, v)
	if err != nil {
		return err
	}
	proof, err := v.Proof(ctx)
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
		Proof     *store.Proof `json:"proof,omitempty"`
		Snapshots []int64      `json:"snapshots"`
		Tags      []store.Tag  `json:"tags"`
	}{
		snap.Dataset, snap.Number, snap.Parent, snap.Created.UTC(), snap.Source, v.Rows,
		splitsOf(v, true), columns, blobBytes, m, proof, all.Snapshots, all.Tags,
	})
}

// drop drops a snapshot or a whole dataset, and sends the numbers of the dropped
// snapshots.
func (s actionHandler) drop(ctx context.Context, b []byte, send func([]byte) error) error {
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

// gc frees dead blobs, or only reports them if dry_run is set. The catalog checks the right
// admin.
func (s actionHandler) gc(ctx context.Context, b []byte, send func([]byte) error) error {
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

// warm reads the blobs of a job into the spill. It checks the right to read first: a
// refused caller gets no other error.
func (s actionHandler) warm(ctx context.Context, b []byte, send func([]byte) error) error {
	req, err := schema.ParseRequest(b)
	if err != nil {
		return err
	}
	cat := s.catalog(ctx)
	if err := cat.MayRead(ctx, req); err != nil {
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

// renewFlightEndpoint implements Flight's RenewFlightEndpoint. Endpoints have no state on
// the server, so renewal only checks that the caller may still read, and sets a new time.
func (s actionHandler) renewFlightEndpoint(ctx context.Context, b []byte, send func([]byte) error) error {
	var req flight.RenewFlightEndpointRequest
	if err := s.unmarshal(ctx, b, &req); err != nil {
		return err
	}
	e := req.GetEndpoint()
	t, err := schema.ParseTicket(e.GetTicket().GetTicket())
	if err != nil {
		return err
	}
	if err := s.catalog(ctx).ExistsFor(ctx, t.Request, policy.Read); err != nil {
		return err
	}
	e.ExpirationTime = s.expiration()
	return sendProto(send, e)
}

// sendProto sends m as one result.
func sendProto(send func([]byte) error, m proto.Message) error {
	b, err := proto.Marshal(m)
	if err != nil {
		return errors.Join(errors.New("encoding the answer"), err)
	}
	return send(b)
}

// tagInfo is the JSON of a tag.
type tagInfo struct {
	Dataset  string `json:"dataset"`
	Tag      string `json:"tag"`
	Snapshot int64  `json:"snapshot"`
}

// tag implements the action: it gives a snapshot a tag.
func (s actionHandler) tag(ctx context.Context, b []byte, send func([]byte) error) error {
	var req struct {
		catalog.Ref
		Name string `json:"name"`
	}
	if err := body(b, &req); err != nil {
		return err
	}
	if err := req.Check(); err != nil {
		return err
	}
	if err := schema.CheckTag("name", req.Name); err != nil {
		return err
	}
	number, err := s.catalog(ctx).Tag(ctx, req.Ref, req.Name)
	if err != nil {
		return err
	}
	return sendJSON(send, tagInfo{req.Dataset, req.Name, number})
}

// untag implements the action: it removes a tag.
func (s actionHandler) untag(ctx context.Context, b []byte, send func([]byte) error) error {
	var req struct {
		Dataset string `json:"dataset"`
		Name    string `json:"name"`
	}
	if err := body(b, &req); err != nil {
		return err
	}
	if err := schema.CheckName("dataset", req.Dataset); err != nil {
		return err
	}
	if err := schema.CheckTag("name", req.Name); err != nil {
		return err
	}
	number, err := s.catalog(ctx).Untag(ctx, req.Dataset, req.Name)
	if err != nil {
		return err
	}
	return sendJSON(send, tagInfo{req.Dataset, req.Name, number})
}

// tags lists the tags of the datasets that a filter matches.
func (s actionHandler) tags(ctx context.Context, b []byte, send func([]byte) error) error {
	filter, err := parseFilter("body", b)
	if err != nil {
		return err
	}
	cat := s.catalog(ctx)
	datasets, err := cat.Datasets(ctx)
	if err != nil {
		return err
	}
	for _, d := range datasets {
		if !filter.Match(d.Name) || len(d.Tags) == 0 {
			continue
		}
		// A dataset is hidden if its rule does not fit its columns.
		if _, err := cat.Exists(ctx, catalog.Ref{Dataset: d.Name}, policy.List); errors.Is(err, schema.ErrNotFound) {
			continue
		} else if err != nil {
			return err
		}
		for _, tag := range d.Tags {
			if filter.Tag != "" && filter.Tag != tag.Name || filter.Number != 0 && filter.Number != tag.Snapshot {
				continue
			}
			if err := sendJSON(send, tagInfo{d.Name, tag.Name, tag.Snapshot}); err != nil {
				return err
			}
		}
	}
	return nil
}

// cancelGrace bounds how long a cancellation waits for the streams to end.
const cancelGrace = time.Second

// knows returns a predicate for the calls that the caller of the catalog may see and
// cancel.
func knows(cat *catalog.Catalog) func(*call) bool {
	knows := cat.Knows()
	return func(c *call) bool { return knows(c.caller.Principal, &c.access) }
}

// cancelPlans ends the running streams of plans. It returns how many there were, and
// whether all have ended. The audit log has one record for each plan before and one after.
// It has none if no visible call runs.
func (s actionHandler) cancelPlans(ctx context.Context, plans map[string]bool) (count int, gone bool, err error) {
	cat := s.catalog(ctx)
	killed, visible := map[*call]bool{}, knows(cat)
	// Each plan is a change of its own in the audit log, with the datasets that its
	// streams read.
	for plan := range plans {
		match := func(c *call) bool { return c.streaming && c.plan == plan && visible(c) }
		what, ok := s.calls.accessOfAny(match)
		if !ok {
			continue
		}
		err := cat.Change(ctx, catalog.Change{Event: audit.Cancel, Dataset: strings.Join(what.Datasets(), "+"), Snapshot: what.Snapshot, Plan: plan},
			func(c *catalog.Change) error {
				for _, ended := range s.calls.kill(errCancelled, match) {
					killed[ended] = true
					c.Count++
				}
				return nil
			})
		if err != nil {
			return len(killed), false, err
		}
	}
	// Wait until the streams have returned their places and memory, but at most cancelGrace.
	// The result says whether they have.
	ctx, cancel := context.WithTimeout(ctx, cancelGrace)
	defer cancel()
	_, left := s.calls.wait(ctx, func(c *call) bool { return killed[c] })
	return len(killed), left == nil, nil
}

// cancel ends the streams of one plan that the caller may cancel.
func (s actionHandler) cancel(ctx context.Context, b []byte, send func([]byte) error) error {
	var req struct {
		Plan string `json:"plan"`
	}
	if err := body(b, &req); err != nil {
		return err
	}
	if req.Plan == "" {
		return &schema.FieldError{Field: "plan", Got: "nothing", Want: "the plan that app_metadata names"}
	}
	n, _, err := s.cancelPlans(ctx, map[string]bool{req.Plan: true})
	if err != nil {
		return err
	}
	return sendJSON(send, struct {
		Plan      string `json:"plan"`
		Cancelled int    `json:"cancelled"`
	}{req.Plan, n})
}

const (
	// maxCancelled bounds the plans of a CancelFlightInfo: each costs a pass over all
	// running calls. An answer of GetFlightInfo has one plan.
	maxCancelled = 16
	// ticketsAtOnce is how many tickets are decoded in one turn of a tenant. Other tenants
	// wait that long.
	ticketsAtOnce = 256
)

// cancelFlightInfo implements Flight's CancelFlightInfo. It cancels the plans of the
// info's tickets.
func (s actionHandler) cancelFlightInfo(ctx context.Context, b []byte, send func([]byte) error) error {
	var req flight.CancelFlightInfoRequest
	if err := s.unmarshal(ctx, b, &req); err != nil {
		return err
	}
	requests, err := s.requestsOf(ctx, req.GetInfo().GetEndpoint())
	if err != nil {
		return err
	}
	// A plan's id does not depend on rows. No job is opened, and the snapshot may have been
	// dropped.
	plans, cat := map[string]bool{}, s.catalog(ctx)
	for _, r := range requests {
		id, err := cat.PlanID(ctx, r.Request)
		if err != nil {
			return fmt.Errorf("endpoint %d: %w", r.endpoint, err)
		}
		plans[id] = true
	}
	result := flight.CancelFlightInfoResult{Status: flight.CancelStatusCancelled}
	_, gone, err := s.cancelPlans(ctx, plans)
	if err != nil {
		return err
	}
	if !gone {
		result.Status = flight.CancelStatusCancelling
	}
	return sendProto(send, &result)
}

// endpointRequest is a request, with the index of the first endpoint that has it.
type endpointRequest struct {
	schema.Request
	endpoint int
}

// requestsOf returns the distinct requests in the tickets of endpoints. Usually there is
// one. It decodes the tickets in turns, because an info may have MaxEndpoints of them.
func (s actionHandler) requestsOf(ctx context.Context, endpoints []*flight.FlightEndpoint) ([]endpointRequest, error) {
	switch n := len(endpoints); {
	case n == 0:
		return nil, &schema.FieldError{Field: "info.endpoint", Got: "none", Want: "the endpoints that GetFlightInfo gave"}
	case n > s.opts.MaxEndpoints:
		return nil, fmt.Errorf("%w: the info has %d endpoints, MaxEndpoints is %d; one endpoint of each plan is enough",
			schema.ErrLimit, n, s.opts.MaxEndpoints)
	}
	var list []endpointRequest
	known := map[string]bool{}
	for from := 0; from < len(endpoints); from += ticketsAtOnce {
		err := s.turn(ctx, func() error {
			for i, e := range endpoints[from:min(from+ticketsAtOnce, len(endpoints))] {
				t, err := schema.ParseTicket(e.GetTicket().GetTicket())
				if err != nil {
					return fmt.Errorf("endpoint %d: %w", from+i, err)
				}
				if key := string(t.Request.Marshal()); !known[key] {
					known[key] = true
					list = append(list, endpointRequest{t.Request, from + i})
				}
				if len(list) > maxCancelled {
					return fmt.Errorf("%w: the tickets of the info are of more than %d requests; an answer of "+
						"GetFlightInfo has one, send one info for each", schema.ErrLimit, maxCancelled)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// turn runs f when it is the turn of the caller's tenant. f may use the CPU but must not
// wait for anything: it occupies one of the engine's places for work.
func (s *Server) turn(ctx context.Context, f func() error) error {
	return s.work.Do(ctx, fetch.CallerFrom(ctx).Tenant, f)
}

// alterRequest is the body of the action alter.
type alterRequest struct {
	Dataset       string            `json:"dataset"`
	DropColumns   []string          `json:"drop_columns"`
	RenameColumns map[string]string `json:"rename_columns"`
	DeleteWhere   string            `json:"delete_where"`
	Source        string            `json:"source"`
}

// alterAck is the JSON of the result of the action alter.
type alterAck struct {
	Dataset  string `json:"dataset"`
	Snapshot int64  `json:"snapshot"`
	Changed  bool   `json:"changed"`
	// Rows counts the rows of the new snapshot.
	Rows    int64 `json:"rows"`
	Deleted int64 `json:"deleted"`
}

// alterDataset implements the action alter: changes of a dataset that need no new rows. The
// right is checked before the columns, so that a refused caller learns nothing of them.
func (s actionHandler) alterDataset(ctx context.Context, b []byte, send func([]byte) error) (err error) {
	var req alterRequest
	if err := body(b, &req); err != nil {
		return err
	}
	if err := schema.CheckName("dataset", req.Dataset); err != nil {
		return err
	}
	if len(req.Source) > upload.MaxSource {
		return &schema.FieldError{Field: "source", Got: fmt.Sprintf("%d bytes", len(req.Source)),
			Want: fmt.Sprintf("at most %d", upload.MaxSource)}
	}
	if n := len(req.DropColumns) + len(req.RenameColumns); n > schema.MaxColumns {
		return &schema.FieldError{Field: "body", Got: fmt.Sprintf("%d columns", n),
			Want: fmt.Sprintf("at most %d", schema.MaxColumns)}
	}
	cat := s.catalog(ctx)
	if _, err := cat.Alterable(ctx, req.Dataset); err != nil {
		return err
	}
	a, err := cat.Alter(ctx, ingest.AlterOptions{Dataset: req.Dataset, Source: req.Source, Drop: req.DropColumns,
		Rename: req.RenameColumns, DeleteWhere: req.DeleteWhere, Mem: s.mem,
		Turn: func(piece func() error) error { return s.work.Do(ctx, fetch.CallerFrom(ctx).Tenant, piece) }})
	if err != nil {
		return err
	}
	// Close releases the alteration's memory, also after a failed commit.
	defer func() {
		if cerr := a.Close(); err == nil {
			err = cerr
		}
	}()
	snap, done, err := cat.CommitAltered(ctx, req.Dataset, a, 0)
	if err != nil {
		return err
	}
	return sendJSON(send, alterAck{snap.Dataset, snap.Number, done.Changed, snap.Rows(), done.Deleted})
}
