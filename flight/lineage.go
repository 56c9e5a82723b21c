package flight

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"

	"bowstring/fetch"
	"bowstring/flight/catalog"
	"bowstring/flight/wire"
	"bowstring/schema"
)

// ConsoleAgent is the user agent of the console's calls. Pages of samples that a person
// views are not a job, so they are not recorded.
const ConsoleAgent = "bowstring-console"

// isConsole reports whether the console makes a call. The connection must come from within
// this process: other clients can send the same user agent, and their reads are recorded.
func isConsole(ctx context.Context) bool {
	if conn := wire.ConnOf(ctx); conn == nil || !conn.Within {
		return false
	}
	md, _ := metadata.FromIncomingContext(ctx)
	agent := md.Get("user-agent")
	return len(agent) > 0 && strings.HasPrefix(agent[0], ConsoleAgent)
}

// lineageRequest is the body of the action lineage.
type lineageRequest struct {
	Job   string  `json:"job"`
	Epoch *uint64 `json:"epoch"`
	Step  *int64  `json:"step"`
	Rank  *int    `json:"rank"`
}

// check returns an error if the combination of fields has no meaning: a step needs a job,
// and an epoch or rank needs a step.
func (r *lineageRequest) check() error {
	switch {
	case r.Job == "" && (r.Step != nil || r.Epoch != nil || r.Rank != nil):
		return &schema.FieldError{Field: "job", Got: "nothing",
			Want: "the name of a job, as stats and batches have it, or no other field to list those on record"}
	case r.Job != "" && r.Step == nil && (r.Epoch != nil || r.Rank != nil):
		return &schema.FieldError{Field: "step", Got: "nothing", Want: "a step of the job"}
	case r.Step != nil && *r.Step < 0:
		return &schema.FieldError{Field: "step", Got: fmt.Sprint(*r.Step), Want: "0 or more"}
	case r.Rank != nil && *r.Rank < 0:
		return &schema.FieldError{Field: "rank", Got: fmt.Sprint(*r.Rank), Want: "0 or more"}
	}
	return nil
}

// lineageHeader is the first result. It describes the record.
type lineageHeader struct {
	Since  time.Time `json:"since"`  // start of the record, zero if it is empty
	Others []string  `json:"others"` // other nodes of the cluster; each has its own record
}

// lineageJob is a job on record.
type lineageJob struct {
	Job      string    `json:"job"`
	Dataset  string    `json:"dataset,omitempty"`
	Snapshot int64     `json:"snapshot,omitempty"`
	Sources  []source  `json:"sources,omitempty"` // of a mixture, instead of Dataset and Snapshot
	Plan     string    `json:"plan"`              // of the job's latest stream
	World    int64     `json:"world"`
	Order    string    `json:"order"`
	Streams  int       `json:"streams"`
	Rows     int64     `json:"rows,omitempty"` // sent; omitted if rows are hidden
	First    time.Time `json:"first"`          // start of its first stream on record; Last: of its last one
	Last     time.Time `json:"last"`
}

// lineageShare is a piece of a rank's share in a step.
type lineageShare struct {
	Job      string   `json:"job"`
	Dataset  string   `json:"dataset,omitempty"`
	Snapshot int64    `json:"snapshot,omitempty"`
	Sources  []source `json:"sources,omitempty"` // of a mixture, instead of Dataset and Snapshot
	Epoch    uint64   `json:"epoch"`
	Step     int64    `json:"step"`
	Rank     int      `json:"rank"`
	World    int64    `json:"world"`
	// Row is the offset of the piece in the rank's share, which has Of rows. Both are
	// omitted if rows are hidden from the caller: they would reveal how many.
	Row       *int64  `json:"row,omitempty"`
	Of        *int64  `json:"of,omitempty"`
	Positions []int64 `json:"positions"`
	// Source is, for a mixture, the index in Sources of each position. SourceEpochs is the
	// epoch of that source.
	Source       []int    `json:"source,omitempty"`
	SourceEpochs []uint64 `json:"source_epochs,omitempty"`
	// Parts is set if rows are packed sequences. It says which part of each position is in
	// which row of the share.
	Parts  []lineagePart `json:"parts,omitempty"`
	IDs    []string      `json:"ids,omitempty"`
	Faults []fetch.Fault `json:"faults,omitempty"`
	// Stands reports that no later stream sent these rows again, to these ranks or to
	// others.
	Stands bool          `json:"stands"`
	Stream lineageStream `json:"stream"`
}

// lineagePart is the range of a document's tokens in a sequence. Row is omitted if rows are
// hidden.
type lineagePart struct {
	Row    *int64 `json:"row,omitempty"`
	From   int64  `json:"from"`
	Tokens int64  `json:"tokens"`
}

// source is a source of a mixture.
type source struct {
	Name     string `json:"name"`
	Dataset  string `json:"dataset"`
	Snapshot int64  `json:"snapshot"`
}

// sourcesOf returns the sources of a request's mixture in the order of its leaves, nil if
// the request has no mixture.
func sourcesOf(req *schema.Request) []source {
	if req.Mixture == nil {
		return nil
	}
	var list []source
	for _, s := range req.Mixture.Leaves() {
		list = append(list, source{s.Called(), s.Dataset, s.Snapshot})
	}
	return list
}

// lineageStream is the stream that sent a piece. Owners is the layout's name, if the
// request assigned rows by node.
type lineageStream struct {
	ID     int64     `json:"id"`
	Plan   string    `json:"plan"`
	Began  time.Time `json:"began"`
	Order  string    `json:"order"`
	Owners string    `json:"owners,omitempty"`
}

// lineageHeader returns the header. Others is never nil, so that JSON has a list.
func (s actionHandler) lineageHeader(cat *catalog.Catalog) lineageHeader {
	return lineageHeader{Since: cat.RecordedSince(), Others: append([]string{}, s.opts.Node.Others()...)}
}

// lineagePiece bounds the rows of one result. A step of a large batch thus needs little
// memory, and the client sees the first rows soon.
const lineagePiece = 4096

// lineage implements the action. A caller sees its own streams, or all streams on datasets
// for which it has the right admin. It sees only samples that exist for it.
//
// The memory of the search is reserved first, because it reads files of the record that
// other callers may read at the same time.
func (s actionHandler) lineage(ctx context.Context, b []byte, send func([]byte) error) error {
	var req lineageRequest
	if err := body(b, &req); err != nil {
		return err
	}
	if err := req.check(); err != nil {
		return err
	}
	release, err := s.reserveAnswer(ctx, min(fetch.LineageBytes, s.answers.Most()))
	if err != nil {
		return fmt.Errorf("looking into the record of what was handed out: %w", err)
	}
	defer release()
	cat := s.catalog(ctx)
	if req.Step == nil {
		return s.lineageJobs(ctx, cat, req.Job, send)
	}
	// A request without an epoch means that of the plan, or the latest epoch of the job's
	// newest stream.
	job, err := cat.Course(ctx, req.Job)
	if err != nil {
		return err
	}
	var epoch uint64
	if req.Epoch != nil {
		epoch = *req.Epoch
	} else if epoch, err = job.Epoch(ctx); err != nil {
		return err
	}
	rank := -1
	if req.Rank != nil {
		rank = *req.Rank
	}
	shares, see, err := job.Step(ctx, epoch, *req.Step, rank)
	if err != nil {
		return err
	}
	defer see.Close()
	if len(shares) == 0 {
		return fmt.Errorf("%w: step %d of epoch %d of job %s is not on record here: it was not handed out by this "+
			"server, or before %s", schema.ErrNotFound,
			*req.Step, epoch, schema.Quote(req.Job), cat.RecordedSince().Format(time.RFC3339))
	}
	if err := sendJSON(send, s.lineageHeader(cat)); err != nil {
		return err
	}
	for i := range shares {
		if err := sendShare(ctx, see, &shares[i], send); err != nil {
			return err
		}
	}
	return nil
}

// sendShare sends the rows of a share that the caller may see, in pieces. If rows are
// hidden, pieces without a visible row are omitted and figures that count hidden rows are
// absent.
func sendShare(ctx context.Context, see *fetch.Job, share *fetch.Share, send func([]byte) error) error {
	whole := see.Seen() == see.Manifest().Rows()
	h := &share.Piece.Head
	order, _ := h.Ticket.OrderOf()
	faults := seenFaults(see, share.Faults)
	if err := named(ctx, see, faults); err != nil {
		return err
	}
	faults = fetch.PlaceFaults(see, faults)
	mixed := see.Alone() == nil
	for from := 0; from < len(share.Positions); from += lineagePiece {
		to := min(from+lineagePiece, len(share.Positions))
		out := lineageShare{
			Job: h.Job, Dataset: h.Ticket.Dataset, Snapshot: h.Ticket.Snapshot, Sources: sourcesOf(&h.Ticket.Request), Epoch: share.Epoch, Step: share.Step,
			Rank: share.Rank, World: share.World,
			Positions: []int64{}, Stands: share.Stands,
			Stream: lineageStream{h.Stream, h.Plan, h.Opened(), order, h.Ticket.Owners},
		}
		if whole {
			row := share.Row + int64(from)
			if share.Parts != nil {
				row = share.Parts[from].Row
			}
			out.Row, out.Of = &row, &share.Of
		}
		for i, pos := range share.Positions[from:to] {
			if !see.Sees(pos) {
				continue
			}
			out.Positions = append(out.Positions, pos)
			if share.Parts != nil {
				p := share.Parts[from+i]
				part := lineagePart{From: p.From, Tokens: p.Tokens}
				if whole {
					part.Row = &p.Row
				}
				out.Parts = append(out.Parts, part)
			}
			// Locate maps a position of the mixture to a source and a position in it. Ids
			// need the mixture's position, so positions are converted at the end.
			if mixed {
				of, _ := see.Locate(pos)
				out.Source = append(out.Source, of)
				out.SourceEpochs = append(out.SourceEpochs, share.SourceEpochs[from+i])
			}
		}
		if from == 0 {
			out.Faults = faults
		}
		if !whole && len(out.Positions)+len(out.Faults) == 0 {
			continue
		}
		if !see.Hides(schema.IDColumn) {
			rows, err := see.Manifest().At(ctx, out.Positions)
			if err != nil {
				return err
			}
			for _, r := range rows {
				out.IDs = append(out.IDs, schema.FormatID(r.ID()))
			}
		}
		for i, pos := range out.Positions {
			_, out.Positions[i] = see.Locate(pos)
		}
		if err := sendJSON(send, out); err != nil {
			return err
		}
	}
	return nil
}

// seenFaults returns the faults of samples and columns that exist for the caller. A hidden
// substitute is removed from a fault.
func seenFaults(see *fetch.Job, all []fetch.Fault) (list []fetch.Fault) {
	for _, f := range all {
		if !see.Sees(f.Position) || see.Hides(f.Column) {
			continue
		}
		if f.Substitute != nil && !see.Sees(*f.Substitute) {
			f.Substitute = nil
		}
		list = append(list, f)
	}
	return list
}

// named sets the ids of the samples that could not be read.
func named(ctx context.Context, see *fetch.Job, faults []fetch.Fault) error {
	for i := range faults {
		rows, err := see.Manifest().At(ctx, []int64{faults[i].Position})
		if err != nil {
			return err
		}
		faults[i].ID = see.ShownID(rows[0].ID())
	}
	return nil
}

// maxLineageJobs bounds the jobs of one listing. If there are more, the newest are listed.
const maxLineageJobs = 4096

// tallyKey identifies a job of a snapshot.
type tallyKey struct {
	job string
	ref catalog.Ref
	mix string // names of a mixture's snapshots; ref is empty then
}

// tally sums the record of a job of a snapshot.
type tally struct {
	tallyKey
	rows        int64
	streams     map[int64]struct{}
	first, last int64 // numbers of streams; they grow with time
	plan, order string
	world       int64
	sources     []source
}

// tallies has the tallies of the jobs that the caller may know of, at most maxLineageJobs.
// One goroutine uses it.
type tallies struct {
	byKey map[tallyKey]*tally
	order []*tally // in the order of the record, oldest file first
}

// of adds the head of a piece to its tally, and returns the counter for the piece's rows.
// If the list is full, it drops the tally that was found first.
func (l *tallies) of(h *fetch.PieceHead) *int64 {
	sources := sourcesOf(&h.Ticket.Request)
	key := tallyKey{h.Job, catalog.Ref{Dataset: h.Ticket.Dataset, Snapshot: h.Ticket.Snapshot}, ""}
	for i := range sources {
		key.mix += fmt.Sprintf("%s@%d ", sources[i].Dataset, sources[i].Snapshot)
	}
	t := l.byKey[key]
	if t == nil {
		if len(l.order) == maxLineageJobs {
			delete(l.byKey, l.order[0].tallyKey)
			l.order = slices.Delete(l.order, 0, 1)
		}
		t = &tally{tallyKey: key, streams: map[int64]struct{}{}, first: h.Stream, sources: sources}
		l.byKey[key], l.order = t, append(l.order, t)
	}
	t.streams[h.Stream] = struct{}{}
	if t.first = min(t.first, h.Stream); h.Stream >= t.last {
		t.last, t.plan, t.world = h.Stream, h.Plan, h.Ticket.WorldSize()
		t.order, _ = h.Ticket.OrderOf()
	}
	return &t.rows
}

// shown reports whether the job's data exists for the caller, and whether the caller may
// see all of its rows. A mixture exists if all its sources do.
func (t *tally) shown(shown func(catalog.Ref) (bool, bool, error)) (exists, whole bool, err error) {
	if t.sources == nil {
		return shown(t.ref)
	}
	exists, whole = true, true
	for i := range t.sources {
		is, all, err := shown(catalog.Ref{Dataset: t.sources[i].Dataset, Snapshot: t.sources[i].Snapshot})
		if err != nil || !is {
			return false, false, err
		}
		whole = whole && all
	}
	return exists, whole, nil
}

// lineageJobs lists the jobs on record, or only the named one. It sums by snapshot first,
// because rights are per dataset, and merges the visible snapshots of a job afterwards.
func (s actionHandler) lineageJobs(ctx context.Context, cat *catalog.Catalog, name string, send func([]byte) error) error {
	var one *catalog.Course
	if name != "" {
		var err error
		if one, err = cat.Course(ctx, name); err != nil {
			return err
		}
	}
	found := &tallies{byKey: map[tallyKey]*tally{}}
	err := cat.RecordedRows(ctx, func(h *fetch.PieceHead) *int64 {
		if one != nil && !one.Has(h.Job) {
			return nil
		}
		return found.of(h)
	})
	if err != nil {
		return err
	}
	if err := sendJSON(send, s.lineageHeader(cat)); err != nil {
		return err
	}
	slices.SortStableFunc(found.order, func(a, b *tally) int { return cmp.Compare(a.first, b.first) })
	byName, list := map[string]*lineageJob{}, []*lineageJob{}
	shown := cat.Shown(ctx)
	for _, t := range found.order {
		exists, whole, err := t.shown(shown)
		if err != nil {
			return err
		}
		if !exists {
			continue
		}
		j := byName[t.job]
		if j == nil {
			j = &lineageJob{Job: t.job, Dataset: t.ref.Dataset, Snapshot: t.ref.Snapshot, Sources: t.sources,
				First: opened(t.first)}
			byName[t.job], list = j, append(list, j)
		}
		if at := opened(t.last); !at.Before(j.Last) {
			j.Order, j.Plan, j.World, j.Last = t.order, t.plan, t.world, at
		}
		if whole {
			j.Rows += t.rows
		}
		j.Streams += len(t.streams)
	}
	for _, j := range list {
		if err := sendJSON(send, j); err != nil {
			return err
		}
	}
	return nil
}

// opened returns the time that a stream's number encodes.
func opened(stream int64) time.Time { return (&fetch.PieceHead{Stream: stream}).Opened() }
