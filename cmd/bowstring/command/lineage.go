package command

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"bowstring/fetch"
)

// LineageCmd is bowstring lineage. Each server records what it hands out. The command
// merges the records of all nodes of a cluster.
type LineageCmd struct {
	Job   string  `arg:"" optional:"" help:"A job, by its name in top, in stats or here, or a plan of it (default: list the jobs on record)."`
	Step  *int64  `placeholder:"N" help:"The step to print."`
	Epoch *uint64 `placeholder:"N" help:"Its epoch (default: the last one on record, or that of the plan)."`
	Rank  *int    `placeholder:"N" help:"One rank (default: all)."`
	All   bool    `help:"Print also deliveries that were replaced: streams that were cut off, and others that went on."`
	Here  bool    `help:"Ask this server alone, not the other nodes of its cluster."`
	JSON  bool    `name:"json" help:"Print a JSON array."`
}

// Help says what is exact.
func (*LineageCmd) Help() string {
	return `Which samples, of which snapshot, a step of a job held, on which rank, in the order in which they were handed out, with
substitutes and samples that could not be read. Servers that run with --lineage keep a record of it. What a client was sent and did
not receive, the stream that went on for it hands out again; what was sent last and never asked for again counts as held.`
}

// Validate is called by kong.
func (c *LineageCmd) Validate() error {
	if c.Job == "" && (c.Step != nil || c.Epoch != nil || c.Rank != nil) {
		return fmt.Errorf("--step, --epoch and --rank are of a job: name one; lineage alone lists those on record")
	}
	if c.Job != "" && c.Step == nil && (c.Epoch != nil || c.Rank != nil) {
		return fmt.Errorf("--epoch and --rank are of a step: name one by --step")
	}
	return nil
}

// lineageResult is one result of the lineage action: a header with the other nodes, a
// job, or a piece of the share of a rank.
type lineageResult struct {
	// Others is set in the header. First and Last are when the first and the last stream
	// of a job began.
	Others []string `json:"others,omitempty"`
	heldShare
	World   int64     `json:"world"`
	Plan    string    `json:"plan,omitempty"`
	Order   string    `json:"order,omitempty"`
	Streams int       `json:"streams,omitempty"`
	Rows    int64     `json:"rows,omitempty"`
	First   time.Time `json:"first,omitzero"`
	Last    time.Time `json:"last,omitzero"`
	Node    string    `json:"node,omitempty"` // the server that answered, if it is not the named one
}

// heldSource is a source of a mixture.
type heldSource struct {
	Name     string `json:"name"`
	Dataset  string `json:"dataset"`
	Snapshot int64  `json:"snapshot"`
}

// of names the snapshots of the samples, for people.
func (s *heldShare) of() string {
	if s.Sources == nil {
		return fmt.Sprintf("%s@%d", printable(s.Dataset), s.Snapshot)
	}
	var names []string
	for _, of := range s.Sources {
		names = append(names, fmt.Sprintf("%s@%d", printable(of.Dataset), of.Snapshot))
	}
	return strings.Join(names, "+")
}

// heldShare is a piece of what a rank got in a step. Row is the index of the first of its
// positions in the rank's share; streams that were cut off and continued make several
// pieces. Stands is false for pieces that another stream handed out again.
type heldShare struct {
	// The field Of is the number of rows of the rank's share. Positions and IDs have the
	// same order; IDs may be shorter if they are unknown.
	Job       string       `json:"job,omitempty"`
	Dataset   string       `json:"dataset,omitempty"`
	Snapshot  int64        `json:"snapshot,omitempty"`
	Sources   []heldSource `json:"sources,omitempty"` // of a mixture
	Epoch     uint64       `json:"epoch"`
	Step      int64        `json:"step"`
	Rank      int          `json:"rank"`
	Row       *int64       `json:"row,omitempty"`
	Of        *int64       `json:"of,omitempty"`
	Positions []int64      `json:"positions,omitempty"`
	// Source and SourceEpochs are set for a mixture. They have the index in Sources and
	// the epoch of that source for each position.
	Source       []int         `json:"source,omitempty"`
	SourceEpochs []uint64      `json:"source_epochs,omitempty"`
	IDs          []string      `json:"ids,omitempty"`
	Faults       []fetch.Fault `json:"faults,omitempty"`
	Stands       bool          `json:"stands"`
	Stream       struct {
		ID     int64     `json:"id"`
		Plan   string    `json:"plan"`
		Began  time.Time `json:"began"`
		Order  string    `json:"order"`
		Owners string    `json:"owners,omitempty"`
	} `json:"stream,omitzero"`
}

// Run prints what a step held, or the jobs on record.
func (c *LineageCmd) Run(ctx context.Context, app *App) error {
	list, err := c.ask(ctx, app)
	if err != nil {
		return err
	}
	if c.Step != nil {
		// One server's answer may be incomplete and another one's may replace it.
		list = together(list)
		if !c.All {
			list = slices.DeleteFunc(list, func(r lineageResult) bool { return !r.Stands })
		}
	}
	switch {
	case c.JSON:
		return printJSON(app.Stdout, list)
	case c.Step == nil:
		return c.jobs(app, list)
	}
	return c.step(app, list)
}

// ask asks the server and the other nodes of its cluster, because each of them records
// only its own streams. A node that cannot be asked is reported and skipped: an
// incomplete answer is better than none.
func (c *LineageCmd) ask(ctx context.Context, app *App) ([]lineageResult, error) {
	// Fields that are nil mean all.
	body := struct {
		Job   string  `json:"job,omitempty"`
		Step  *int64  `json:"step,omitempty"`
		Epoch *uint64 `json:"epoch,omitempty"`
		Rank  *int    `json:"rank,omitempty"`
	}{c.Job, c.Step, c.Epoch, c.Rank}
	list := []lineageResult{}
	var others []string
	// take collects the results of one server. Only the header of the first one has the
	// others.
	take := func(node string) func(lineageResult) error {
		return func(r lineageResult) error {
			if r.Job == "" {
				if node == "" {
					others = r.Others
				}
				return nil
			}
			r.Node = node
			list = append(list, r)
			return nil
		}
	}
	var missing error
	// The named server is asked first: its header has the addresses of the others.
	err := app.with(ctx, false, func(client *client) error {
		err := act(ctx, client, "lineage", body, take(""))
		if isNotFound(err) && !c.Here { // another node may know the job
			missing = err
			found := list
			err = act(ctx, client, "lineage", struct{}{}, take("")) // for the addresses of the other nodes
			list = found
		}
		return err
	})
	if err != nil {
		return nil, cmp.Or(missing, err)
	}
	for _, address := range others {
		if c.Here {
			break
		}
		// The first answer fixes the epoch. Otherwise each node would answer for the last
		// epoch that it has itself.
		if c.Step != nil && c.Epoch == nil && len(list) > 0 {
			body.Epoch = &list[0].Epoch
		}
		err := app.at(ctx, address, func(client *client) error { return act(ctx, client, "lineage", body, take(address)) })
		if err != nil && !isNotFound(err) {
			app.Notef("%s cannot be asked, and may know more: %v", address, err)
		}
	}
	if len(list) == 0 && missing != nil {
		return nil, missing
	}
	return list, nil
}

// together merges the answers of several servers. If a step went to several worlds, the
// last one counts. If rows were handed out more than once, the last ones count. The
// pieces are first sorted by stream, the newest first, and at the end by rank and row.
func together(list []lineageResult) []lineageResult {
	slices.SortStableFunc(list, func(a, b lineageResult) int { return cmp.Compare(b.Stream.ID, a.Stream.ID) })
	taken := map[int]int64{} // by rank: the first row that a later stream has
	for i := range list {
		r, last := &list[i], &list[0]
		if r.World != last.World || r.Stream.Owners != last.Stream.Owners {
			r.Stands = false
		}
		if !r.Stands || r.Row == nil {
			continue
		}
		// The piece overlaps what a later stream handed out. The overlap is cut off, and
		// a piece that is all overlap does not stand.
		if from, ok := taken[r.Rank]; ok && *r.Row+int64(len(r.Positions)) > from {
			if *r.Row >= from {
				r.Stands = false
				continue
			}
			// IDs and sources may be shorter than the positions, so that each cut is
			// limited.
			n := from - *r.Row
			r.Positions, r.IDs = r.Positions[:n], r.IDs[:min(n, int64(len(r.IDs)))]
			r.Source, r.SourceEpochs = r.Source[:min(n, int64(len(r.Source)))], r.SourceEpochs[:min(n, int64(len(r.SourceEpochs)))]
		}
		if from, ok := taken[r.Rank]; !ok || *r.Row < from {
			taken[r.Rank] = *r.Row
		}
	}
	slices.SortStableFunc(list, func(a, b lineageResult) int {
		var x, y int64
		if a.Row != nil && b.Row != nil {
			x, y = *a.Row, *b.Row
		}
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(x, y))
	})
	return list
}

// jobs prints the jobs on record.
func (c *LineageCmd) jobs(app *App, list []lineageResult) error {
	if len(list) == 0 {
		app.Notef("no job is on record")
		return nil
	}
	out := tableOf("JOB", "DATASET", ">STREAMS", ">ROWS", ">RANKS", "ORDER", "FIRST STREAM", "LAST STREAM")
	for i := range list {
		j := &list[i]
		// A job whose servers kept no record of its rows has none here.
		rows := "-"
		if j.Rows > 0 {
			rows = humanize.Comma(j.Rows)
		}
		out.add(j.Job, j.of(), strconv.Itoa(j.Streams), rows,
			strconv.FormatInt(j.World, 10), j.Order,
			j.First.Local().Format(time.DateTime), j.Last.Local().Format(time.DateTime))
	}
	return out.print(app.Stdout)
}

// step prints the samples of a step, one in a line. A fault's position belongs to one
// source, so that it is compared only with samples of the same source.
func (c *LineageCmd) step(app *App, list []lineageResult) error {
	columns := []string{">RANK", ">ROW", ">POSITION", "ID", "NOTE"}
	// The source has columns only for a mixture.
	mixed := len(list) > 0 && list[0].Sources != nil
	if mixed {
		columns = slices.Insert(columns, 2, "SOURCE", ">ITS EPOCH")
	}
	out := tableOf(columns...)
	for i := range list {
		r := &list[i]
		if i == 0 {
			app.Notef("step %d of epoch %d of %s, shared out among %d ranks", r.Step, r.Epoch, r.of(), r.World)
		}
		for k, pos := range r.Positions {
			// The row may be unknown.
			row, id, notes := "-", "-", []string(nil)
			if r.Row != nil {
				row = strconv.FormatInt(*r.Row+int64(k), 10)
			}
			if k < len(r.IDs) {
				id = r.IDs[k]
			}
			source := ""
			if k < len(r.Source) && r.Source[k] < len(r.Sources) {
				source = r.Sources[r.Source[k]].Name
			}
			for _, f := range r.Faults {
				switch {
				case f.Source != source: // a position of another snapshot
				case f.Substitute != nil && *f.Substitute == pos:
					notes = append(notes, fmt.Sprintf("in the place of %d, whose %s could not be read", f.Position,
						printable(f.Column)))
				case f.Substitute == nil && f.Position == pos:
					notes = append(notes, fmt.Sprintf("%s could not be read, and is null", printable(f.Column)))
				}
			}
			// With --all, pieces that were replaced are shown too.
			if !r.Stands {
				notes = append(notes, "handed out again later")
			}
			cells := []string{strconv.Itoa(r.Rank), row, strconv.FormatInt(pos, 10), id, strings.Join(notes, "; ")}
			if mixed {
				epoch := "-"
				if k < len(r.SourceEpochs) {
					epoch = strconv.FormatUint(r.SourceEpochs[k], 10)
				}
				cells = slices.Insert(cells, 2, printable(source), epoch)
			}
			out.add(cells...)
		}
	}
	return out.print(app.Stdout)
}

// isNotFound reports whether a server answered that it does not know the job.
func isNotFound(err error) bool { return status.Code(err) == codes.NotFound }
