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

// ConsoleAgent is how the console's calls name their client: pages of samples are no job.
const ConsoleAgent = "bowstring-console"

// isConsole reports whether a call is one of the console's. Others may call themselves so, and are put on record.
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

// lineageHeader is the first result: what the record is.
type lineageHeader struct {
	Since  time.Time `json:"since"`  // since when streams are on record, zero if none is
	Others []string  `json:"others"` // the other nodes of the cluster, which have records of their own
}

// lineageJob is a job that is on record.
type lineageJob struct {
	Job      string    `json:"job"`
	Dataset  string    `json:"dataset,omitempty"`
	Snapshot int64     `json:"snapshot,omitempty"`
	Sources  []source  `json:"sources,omitempty"` // of a mixture, in the place of both
	Plan     string    `json:"plan"`              // the last one
	World    int64     `json:"world"`
	Order    string    `json:"order"`
	Streams  int       `json:"streams"`
	Rows     int64     `json:"rows,omitempty"` // handed out; left out where rows are hidden
	First    time.Time `json:"first"`          // when its first stream on record began, and the last one
	Last     time.Time `json:"last"`
}

// lineageShare is a piece of what a rank got in a step.
type lineageShare struct {
	Job      string   `json:"job"`
	Dataset  string   `json:"dataset,omitempty"`
	Snapshot int64    `json:"snapshot,omitempty"`
	Sources  []source `json:"sources,omitempty"` // of a mixture, in the place of both
	Epoch    uint64   `json:"epoch"`
	Step     int64    `json:"step"`
	Rank     int      `json:"rank"`
	World    int64    `json:"world"`
	// Row is where it begins in the share of the rank, which has Of rows. Both are left out where rows are hidden.
	Row       *int64  `json:"row,omitempty"`
	Of        *int64  `json:"of,omitempty"`
	Positions []int64 `json:"positions"`
	// Source is, of a mixture, which of Sources each position is of, and SourceEpochs in which epoch of the source.
	Source       []int    `json:"source,omitempty"`
	SourceEpochs []uint64 `json:"source_epochs,omitempty"`
	// Parts says, where rows are sequences, what of each position is in which row of the share.
	Parts  []lineagePart `json:"parts,omitempty"`
	IDs    []string      `json:"ids,omitempty"`
	Faults []fetch.Fault `json:"faults,omitempty"`
	// Stands says that no later stream handed these rows out again, to these ranks or to others.
	Stands bool          `json:"stands"`
	Stream lineageStream `json:"stream"`
}

// lineagePart is what a sequence has of a document. Row is left out where rows are hidden.
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

// sourcesOf are those of a request's mixture, nil if it has none.
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

type lineageStream struct {
	ID     int64     `json:"id"`
	Plan   string    `json:"plan"`
	Began  time.Time `json:"began"`
	Order  string    `json:"order"`
	Owners string    `json:"owners,omitempty"`
}

func (s actionHandler) lineageHeader(cat *catalog.Catalog) lineageHeader {
	return lineageHeader{Since: cat.RecordedSince(), Others: append([]string{}, s.opts.Node.Others()...)}
}

// lineagePiece is how many rows one result has at most.
const lineagePiece = 4096

// lineage is the action. A caller learns of his own streams, or of all on datasets that he has the right admin to; of
// their samples, those that he may see.
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

// sendShare sends what of a share is to be seen, in pieces.
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

// seenFaults are those of samples and columns that exist for the caller.
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

// named fills in the ids of samples that could not be read.
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

// maxLineageJobs is how many jobs are listed at once: those that began last.
const maxLineageJobs = 4096

// tallyKey is a job of a snapshot.
type tallyKey struct {
	job string
	ref catalog.Ref
	mix string // the sources of a mixture, which is of no one snapshot
}

// tally sums up what is on record of a job of a snapshot.
type tally struct {
	tallyKey
	rows        int64
	streams     map[int64]struct{}
	first, last int64 // stream
	plan, order string
	world       int64
	sources     []source
}

// tallies are those of the jobs that a caller may know of, at most maxLineageJobs.
type tallies struct {
	byKey map[tallyKey]*tally
	order []*tally // as they were found: the oldest files of the record come first
}

// of takes the head of a piece in, and returns where its rows are added.
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

// shown reports whether what the job is of exists for a caller, and whether he sees all of its rows.
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

// lineageJobs lists the jobs on record, or one.
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

func opened(stream int64) time.Time { return (&fetch.PieceHead{Stream: stream}).Opened() }
