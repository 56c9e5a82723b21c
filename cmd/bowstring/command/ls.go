package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	arrowflight "github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/dustin/go-humanize"
	"google.golang.org/grpc/status"

	"bowstring/fetch"
	"bowstring/fetch/store"
	"bowstring/schema"
	"bowstring/spill/scale"
)

// LsCmd is bowstring ls.
type LsCmd struct {
	Dataset string `arg:"" optional:"" help:"Only this dataset, or its snapshot number or tag N in DATASET@N; with a trailing * all whose names begin so."`
	Cache   bool   `help:"What a server keeps of each dataset in its spill, and what jobs have gained by it."`
	JSON    bool   `name:"json" help:"Print a JSON array; with --cache an object."`
}

// listed is one line of ls: a split of a snapshot.
type listed struct {
	Dataset  string `json:"dataset"`
	Split    string `json:"split"`
	Snapshot int64  `json:"snapshot"`
	Rows     int64  `json:"rows"`
	Bytes    int64  `json:"bytes"`
	// Tags are all tags of the dataset.
	Tags  []store.Tag `json:"tags"`
	Error string      `json:"error,omitempty"` // why rows and bytes are -1, that is unknown
}

// size asks for the bytes of a split. A listing leaves them out if it would have to open
// a manifest for them. An error is stored in the line, so that one damaged dataset does
// not hide the others.
func (l *listed) size(ctx context.Context, client *client) {
	d := &arrowflight.FlightDescriptor{Type: arrowflight.DescriptorPATH,
		Path: []string{schema.FormatSnapshotName(l.Dataset, l.Snapshot, "")}}
	if l.Split != "" {
		d.Path = append(d.Path, l.Split)
	}
	// GetFlightInfo opens the manifest, which a listing of all datasets avoids.
	info, err := client.GetFlightInfo(ctx, d)
	if err != nil {
		l.Rows, l.Bytes, l.Error = -1, -1, status.Convert(err).Message()
		return
	}
	l.Bytes = info.GetTotalBytes()
}

// Run lists the splits of the newest snapshots. It prints all lines, and then returns the
// errors of those that are damaged.
func (c *LsCmd) Run(ctx context.Context, app *App) error {
	if c.Cache {
		return c.cache(ctx, app)
	}
	lines := []listed{}
	err := app.with(ctx, false, func(client *client) error {
		// Without criteria the server lists all datasets that the caller may see.
		var criteria []byte
		if c.Dataset != "" {
			var err error
			if criteria, err = json.Marshal(map[string]string{"dataset": c.Dataset}); err != nil {
				return err
			}
		}
		// The server sends a FlightInfo for each split.
		stream, err := client.ListFlights(ctx, &arrowflight.Criteria{Expression: criteria})
		if err != nil {
			return err
		}
		for {
			info, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			var l listed
			if err := json.Unmarshal(info.GetAppMetadata(), &l); err != nil {
				return fmt.Errorf("%s: the listing is not what this version of bowstring expects: %w", client.target,
					err)
			}
			// The split may be in the path of the descriptor only.
			if path := info.GetFlightDescriptor().GetPath(); len(path) > 1 && l.Split == "" {
				l.Split = path[1]
			}
			l.Rows, l.Bytes = info.GetTotalRecords(), info.GetTotalBytes()
			if l.Bytes < 0 && l.Error == "" {
				l.size(ctx, client)
			}
			// A list of JSON is empty and not null.
			if l.Tags == nil {
				l.Tags = []store.Tag{}
			}
			lines = append(lines, l)
		}
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(app.Stdout, lines)
	}
	out := tableOf("DATASET", "SPLIT", ">SNAPSHOT", ">ROWS", ">BYTES", "TAGS")
	var broken []error
	for _, l := range lines {
		// A damaged dataset has a line as well, with ? and its error at the end.
		rows, bytes := humanize.Comma(l.Rows), humanize.IBytes(uint64(max(l.Bytes, 0)))
		if l.Error != "" {
			rows, bytes = "?", "?"
			broken = append(broken, fmt.Errorf("%s@%d: %s", l.Dataset, l.Snapshot, l.Error))
		}
		out.add(l.Dataset, l.Split, strconv.FormatInt(l.Snapshot, 10), rows, bytes, tagText(l.Tags))
	}
	return errors.Join(append(broken, out.print(app.Stdout))...)
}

// cached is the output of ls --cache.
type cached struct {
	// BudgetBytes and HeldBytes are of the disk, index and dead space included. Bytes is
	// of the blobs alone.
	Policy      string          `json:"policy"`
	BudgetBytes int64           `json:"budget_bytes"`
	HeldBytes   int64           `json:"held_bytes"` // of the disk
	Entries     int64           `json:"entries"`
	Bytes       int64           `json:"bytes"` // of blobs
	Datasets    []cachedDataset `json:"datasets"`
	Scale       *scale.Decision `json:"spill_scale,omitempty"` // the last decision about the size
}

// cachedDataset is the content of the spill of a snapshot, and its counters since the
// spill was opened.
type cachedDataset struct {
	Dataset string           `json:"dataset"` // with the snapshot's number
	Entries int64            `json:"entries"`
	Bytes   int64            `json:"bytes"`
	Hits    int64            `json:"hits"`
	Misses  int64            `json:"misses"`
	HitRate *float64         `json:"hit_rate"` // null before the first read
	Evicted int64            `json:"evicted"`
	Jobs    []fetch.JobStats `json:"jobs"` // running jobs
}

// cache lists the content of a server's spill. A node in this process has none.
func (c *LsCmd) cache(ctx context.Context, app *App) error {
	if err := app.needServer("ls --cache"); err != nil {
		return err
	}
	return app.with(ctx, false, func(client *client) error {
		// Only two parts of the statistics are decoded.
		stats, err := actOne[struct {
			Engine fetch.Stats     `json:"engine"`
			Scale  *scale.Decision `json:"spill_scale"`
		}](ctx, client, "stats", struct{}{})
		if err != nil {
			return err
		}
		if stats.Engine.Spill == nil {
			return fmt.Errorf("%w: the server at %s has no spill; it is served with one by --spill DIR",
				schema.ErrNotFound, client.target)
		}
		found := c.collect(stats.Engine, stats.Scale)
		if c.JSON {
			return printJSON(app.Stdout, found)
		}
		return found.print(app)
	})
}

// collect groups jobs below their datasets, and keeps the datasets that the user named.
func (c *LsCmd) collect(st fetch.Stats, decision *scale.Decision) cached {
	out := cached{
		Policy: st.Spill.Policy, BudgetBytes: st.Spill.BudgetBytes, HeldBytes: st.Spill.HeldBytes,
		Entries: st.Spill.Entries, Bytes: st.Spill.Bytes, Datasets: []cachedDataset{}, Scale: decision,
	}
	// A job belongs to the snapshot that it reads.
	jobs := map[string][]fetch.JobStats{}
	for _, j := range st.Jobs {
		jobs[j.Dataset] = append(jobs[j.Dataset], j)
	}
	for name := range jobs { // also jobs that have read nothing yet
		if _, ok := st.Spill.Datasets[name]; !ok {
			out.Datasets = append(out.Datasets, cachedDataset{Dataset: name, Jobs: jobs[name]})
		}
	}
	for name, d := range st.Spill.Datasets {
		out.Datasets = append(out.Datasets, cachedDataset{
			Dataset: name, Entries: d.Entries, Bytes: d.Bytes, Hits: d.Hits, Misses: d.Misses,
			HitRate: hitRate(d.Hits, d.Misses), Evicted: d.Evicted, Jobs: append([]fetch.JobStats{}, jobs[name]...),
		})
	}
	// The filter is applied last, on both kinds of entries.
	out.Datasets = slices.DeleteFunc(out.Datasets, func(d cachedDataset) bool { return !c.names(d.Dataset) })
	slices.SortFunc(out.Datasets, func(a, b cachedDataset) int { return cmp.Compare(a.Dataset, b.Dataset) })
	return out
}

// names reports whether the user named a snapshot, by its dataset or by the beginning of
// it.
func (c *LsCmd) names(snapshot string) bool {
	dataset, _, _ := strings.Cut(snapshot, "@")
	if stem, ok := strings.CutSuffix(c.Dataset, "*"); ok {
		return strings.HasPrefix(dataset, stem)
	}
	return c.Dataset == "" || c.Dataset == dataset
}

// hitRate returns the share of hits, and nil if there was no read.
func hitRate(hits, misses int64) *float64 {
	if hits+misses == 0 {
		return nil
	}
	rate := float64(hits) / float64(hits+misses)
	return &rate
}

// percent formats a share, and an unknown one as "-".
func percent(rate *float64) string {
	if rate == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100**rate)
}

// print prints a line for each dataset, and below it one for each of its jobs.
func (c *cached) print(app *App) error {
	// A job's line has the columns of its snapshot, as far as they make sense for it.
	out := tableOf("DATASET", ">ENTRIES", ">BYTES", ">HITS", ">MISSES", ">HIT RATE", ">EVICTED", ">SAVED")
	for _, d := range c.Datasets {
		out.add(d.Dataset, humanize.Comma(d.Entries), humanize.IBytes(uint64(d.Bytes)),
			humanize.Comma(d.Hits), humanize.Comma(d.Misses), percent(d.HitRate), humanize.Comma(d.Evicted))
		for _, j := range d.Jobs {
			out.add("  job "+j.Job, "", humanize.IBytes(uint64(j.SpillBytes)),
				humanize.Comma(j.SpillReads), humanize.Comma(j.StoreReads),
				percent(hitRate(j.SpillReads, j.StoreReads)), "",
				time.Duration(j.SavedNanos).Round(time.Millisecond).String())
		}
	}
	if err := out.print(app.Stdout); err != nil {
		return err
	}
	err := app.Printf("\n%s of %s held, policy %s\n", humanize.IBytes(uint64(c.HeldBytes)),
		humanize.IBytes(uint64(c.BudgetBytes)), printable(c.Policy))
	if err != nil || c.Scale == nil {
		return err
	}
	return app.Printf("%s: %s\n", printable(c.Scale.Rule), printable(c.Scale.Reason))
}
