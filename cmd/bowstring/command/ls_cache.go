package command

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"bowstring/fetch"
	"bowstring/schema"
	"bowstring/spill/scale"
)

// cached is what ls --cache says.
type cached struct {
	Policy      string          `json:"policy"`
	BudgetBytes int64           `json:"budget_bytes"`
	HeldBytes   int64           `json:"held_bytes"` // of the disk
	Entries     int64           `json:"entries"`
	Bytes       int64           `json:"bytes"` // of blobs
	Datasets    []cachedDataset `json:"datasets"`
	Scale       *scale.Decision `json:"spill_scale,omitempty"` // the last one
}

// cachedDataset is what the spill has of a dataset, and has counted since it was opened.
type cachedDataset struct {
	Dataset string           `json:"dataset"` // with the snapshot's number
	Entries int64            `json:"entries"`
	Bytes   int64            `json:"bytes"`
	Hits    int64            `json:"hits"`
	Misses  int64            `json:"misses"`
	HitRate *float64         `json:"hit_rate"` // null before the first
	Evicted int64            `json:"evicted"`
	Jobs    []fetch.JobStats `json:"jobs"` // that run
}

// cache lists what is in a server's spill.
func (c *LsCmd) cache(ctx context.Context, app *App) error {
	if err := app.needServer("ls --cache"); err != nil {
		return err
	}
	return app.with(ctx, false, func(client *client) error {
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

// collect puts jobs below their datasets, of those that were asked for.
func (c *LsCmd) collect(st fetch.Stats, decision *scale.Decision) cached {
	out := cached{
		Policy: st.Spill.Policy, BudgetBytes: st.Spill.BudgetBytes, HeldBytes: st.Spill.HeldBytes,
		Entries: st.Spill.Entries, Bytes: st.Spill.Bytes, Datasets: []cachedDataset{}, Scale: decision,
	}
	jobs := map[string][]fetch.JobStats{}
	for _, j := range st.Jobs {
		jobs[j.Dataset] = append(jobs[j.Dataset], j)
	}
	for name := range jobs { // also where nothing was asked of the spill yet
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
	out.Datasets = slices.DeleteFunc(out.Datasets, func(d cachedDataset) bool { return !c.names(d.Dataset) })
	slices.SortFunc(out.Datasets, func(a, b cachedDataset) int { return cmp.Compare(a.Dataset, b.Dataset) })
	return out
}

// names says whether a snapshot's name is asked for: by its dataset's name or the beginning of it.
func (c *LsCmd) names(snapshot string) bool {
	dataset, _, _ := strings.Cut(snapshot, "@")
	if stem, ok := strings.CutSuffix(c.Dataset, "*"); ok {
		return strings.HasPrefix(dataset, stem)
	}
	return c.Dataset == "" || c.Dataset == dataset
}

// hitRate is a share; nil of nothing.
func hitRate(hits, misses int64) *float64 {
	if hits+misses == 0 {
		return nil
	}
	rate := float64(hits) / float64(hits+misses)
	return &rate
}

func percent(rate *float64) string {
	if rate == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100**rate)
}

func (c *cached) print(app *App) error {
	out := table{numbers: []bool{false, true, true, true, true, true, true, true}}
	out.add("DATASET", "ENTRIES", "BYTES", "HITS", "MISSES", "HIT RATE", "EVICTED", "SAVED")
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
