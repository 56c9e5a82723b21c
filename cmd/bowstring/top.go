package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/term"

	"bowstring/fetch"
	"bowstring/flight"
)

// TopCmd is bowstring top.
type TopCmd struct {
	Interval time.Duration `default:"2s" placeholder:"DURATION" help:"Time between two looks (default: ${default})."`
	Once     bool          `help:"Look once, over one interval, and end."`
	JSON     bool          `name:"json" help:"Print a JSON object for each look, one a line."`
}

// Validate is called by kong.
func (c *TopCmd) Validate() error {
	if c.Interval < 100*time.Millisecond {
		return fmt.Errorf("--interval: got %s, want 100ms or more", c.Interval)
	}
	return nil
}

// topView is what top shows: what was between two looks.
type topView struct {
	At       time.Time `json:"at"`
	Server   string    `json:"server"`
	Draining bool      `json:"draining"`
	Seconds  float64   `json:"seconds"` // between the looks

	RowsPerSec     float64  `json:"rows_per_s"`
	BytesPerSec    float64  `json:"bytes_per_s"`
	StoreBytesPerS float64  `json:"store_bytes_per_s"`
	SpillShare     *float64 `json:"spill_share"`        // of bytes read; null of none
	StoreP99       int64    `json:"store_p99_us"`       // of the last seconds
	SpillHeld      int64    `json:"spill_held_bytes"`   // of the disk
	SpillBudget    int64    `json:"spill_budget_bytes"` // 0 without a spill
	WindowUsed     int64    `json:"window_used_bytes"`  // that streams hold
	WindowLimit    int64    `json:"window_limit_bytes"` // that they may
	Lost           int64    `json:"lost"`               // blobs, since the server began
	FailedReads    int64    `json:"failed_reads"`       // likewise
	ReadsInFlight  int      `json:"store_reads_in_flight"`

	Jobs    []jobView    `json:"jobs"`
	Streams []streamView `json:"streams"` // the busiest first
}

// jobView is a job: of the streams of one plan, or of those that the spill has together.
type jobView struct {
	Job        string   `json:"job"`
	Dataset    string   `json:"dataset"`
	Streams    int      `json:"streams"`
	Epoch      uint64   `json:"epoch"`
	Progress   float64  `json:"progress"`     // share of the epoch
	LeftSecs   *float64 `json:"epoch_left_s"` // null where it cannot be said yet
	SpillShare *float64 `json:"spill_share"`  // of its blobs; null without a spill
}

// streamView is a stream and the shares of its time, since it began where it is
// new and otherwise between the looks.
type streamView struct {
	ID          uint64  `json:"id"`
	Kind        string  `json:"kind"`
	Plan        string  `json:"plan,omitempty"`
	Dataset     string  `json:"dataset,omitempty"`
	Tenant      string  `json:"tenant,omitempty"`
	Peer        string  `json:"peer"`
	RowsPerSec  float64 `json:"rows_per_s"`
	BytesPerSec float64 `json:"bytes_per_s"`
	Store       float64 `json:"store"`
	Spill       float64 `json:"spill"`
	Encode      float64 `json:"encode"`
	Consumer    float64 `json:"consumer"`
	Limit       string  `json:"limit"` // where most of its time goes: store, spill, encode or consumer
}

// Run looks until it is stopped.
func (c *TopCmd) Run(ctx context.Context, app *App) error {
	if app.cli.Globals.Server == "" {
		return usagef("top looks at a running server: name it by --server")
	}
	return app.with(false, func(client *client) error {
		look := func() (flight.Stats, time.Time, error) {
			st, err := actOne[flight.Stats](ctx, client, "stats", struct{}{})
			return st, time.Now(), err
		}
		before, at, err := look()
		for err == nil && sleep(ctx, c.Interval) {
			var after flight.Stats
			var now time.Time
			if after, now, err = look(); err != nil {
				break
			}
			v := newTopView(client.target, &before, &after, at, now)
			if err = c.show(app, v); err != nil || c.Once {
				break
			}
			before, at = after, now
		}
		if ctx.Err() != nil && !c.Once {
			return nil // that is how one leaves it
		}
		return err
	})
}

// show prints a view; on a terminal in the place of the one before.
func (c *TopCmd) show(app *App, v *topView) error {
	if c.JSON {
		line, err := json.Marshal(v)
		if err != nil {
			return err
		}
		_, err = app.Stdout.Write(append(printableJSON(line), '\n'))
		return err
	}
	var text bytes.Buffer
	if err := v.print(&text); err != nil {
		return err
	}
	if f, ok := app.Stdout.(*os.File); ok && !c.Once && term.IsTerminal(int(f.Fd())) {
		width, height, err := term.GetSize(int(f.Fd()))
		if err != nil {
			width, height = 80, 24
		}
		return app.Printf("%s", screen(text.String(), width, height))
	}
	return app.Printf("%s", text.String())
}

// screen is what draws the text over what is there, as much of it as fits: home,
// each line and the end of it erased, and then all below.
func screen(text string, width, height int) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	var b strings.Builder
	b.WriteString("\x1b[H")
	for i, line := range lines[:min(len(lines), max(height-1, 1))] {
		if i > 0 {
			b.WriteString("\r\n")
		}
		if runes := []rune(line); len(runes) > width {
			line = string(runes[:width])
		}
		b.WriteString(line + "\x1b[K")
	}
	b.WriteString("\r\n\x1b[J")
	return b.String()
}

func newTopView(target string, a, b *flight.Stats, from, to time.Time) *topView {
	secs := to.Sub(from).Seconds()
	perSec := func(n int64) float64 { return float64(max(n, 0)) / secs }
	store, spill := b.Engine.ReadBytes-a.Engine.ReadBytes, b.Engine.SpillBytes-a.Engine.SpillBytes
	v := &topView{
		At: to.UTC().Truncate(time.Millisecond), Server: target, Draining: b.Server.Draining, Seconds: secs,
		RowsPerSec: perSec(b.Server.Rows - a.Server.Rows), BytesPerSec: perSec(b.Server.Bytes - a.Server.Bytes), StoreBytesPerS: perSec(store),
		SpillShare: hitRate(spill, store), StoreP99: b.Engine.Latency.P99, WindowUsed: b.Engine.WindowUsed, WindowLimit: b.Engine.WindowLimit,
		Lost: b.Engine.Lost, FailedReads: b.Engine.FailedReads, ReadsInFlight: b.Engine.ReadsInFlight,
		Jobs: jobsOf(a, b, secs), Streams: streamsOf(a, b, from, to),
	}
	if s := b.Engine.Spill; s != nil {
		v.SpillHeld, v.SpillBudget = s.HeldBytes, s.BudgetBytes
	}
	return v
}

// jobsOf lists the jobs that the spill knows, and of the other streams those of one plan together.
func jobsOf(a, b *flight.Stats, secs float64) []jobView {
	list := []jobView{}
	known := map[string]bool{}
	for i := range b.Engine.Jobs {
		j := &b.Engine.Jobs[i]
		known[j.Dataset] = true
		one := jobView{
			Job: j.Job, Dataset: j.Dataset, Streams: j.Streams, Epoch: j.Epoch, Progress: float64(j.Row) / float64(max(j.Rows, 1)),
			SpillShare: hitRate(j.SpillReads, j.StoreReads+j.WindowReads),
		}
		if j.RowTime > 0 && j.Streams > 0 {
			left := time.Duration((j.Rows - j.Row) * j.RowTime).Seconds()
			one.LeftSecs = &left
		}
		list = append(list, one)
	}
	before := map[string]float64{}
	for _, j := range plans(a.Engine.Windows) {
		before[j.Job] = j.Progress
	}
	for _, j := range plans(b.Engine.Windows) {
		if known[j.Dataset] {
			continue
		}
		if past, ok := before[j.Job]; ok && j.Progress > past {
			left := (1 - j.Progress) / (j.Progress - past) * secs
			j.LeftSecs = &left
		}
		list = append(list, j)
	}
	return list
}

// plans are the streams of one plan together, which are as far as the one that is least far.
func plans(windows []fetch.WindowStats) []jobView {
	var list []jobView
	for _, w := range windows {
		if w.Steps == 0 {
			continue
		}
		at := float64(w.Step) / float64(w.Steps)
		if i := slices.IndexFunc(list, func(j jobView) bool { return j.Job == w.Job && j.Epoch == w.Epoch }); i >= 0 {
			list[i].Streams++
			list[i].Progress = min(list[i].Progress, at)
			continue
		}
		list = append(list, jobView{Job: w.Job, Dataset: w.Dataset, Streams: 1, Epoch: w.Epoch, Progress: at})
	}
	return list
}

func streamsOf(a, b *flight.Stats, from, to time.Time) []streamView {
	datasets := map[string]string{}
	for _, w := range b.Engine.Windows {
		datasets[w.Job] = w.Dataset
	}
	before := map[uint64]*flight.StreamInfo{}
	for i := range a.Streams {
		before[a.Streams[i].ID] = &a.Streams[i]
	}
	list := []streamView{}
	for _, s := range b.Streams {
		past, since := before[s.ID], to.Sub(from)
		if past == nil { // it began meanwhile
			past, since = &flight.StreamInfo{}, max(min(to.Sub(s.Started), since), time.Millisecond)
		}
		share := func(now, then int64) float64 { return min(float64(max(now-then, 0))/float64(since), 1) }
		one := streamView{
			ID: s.ID, Kind: s.Kind, Plan: s.Plan, Dataset: datasets[s.Plan], Tenant: s.Tenant, Peer: s.Peer,
			RowsPerSec: float64(s.Rows-past.Rows) / since.Seconds(), BytesPerSec: float64(s.Bytes-past.Bytes) / since.Seconds(),
			Store: share(s.Wait.Store, past.Wait.Store), Spill: share(s.Wait.Spill, past.Wait.Spill),
			Encode: share(s.Wait.Encode, past.Wait.Encode), Consumer: share(s.Wait.Consumer, past.Wait.Consumer),
		}
		one.Limit = one.limit()
		list = append(list, one)
	}
	slices.SortStableFunc(list, func(a, b streamView) int {
		return cmp.Or(cmp.Compare(b.BytesPerSec, a.BytesPerSec), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// limit is where most of the time goes; a stream that stands still has said
// nothing of where.
func (s *streamView) limit() string {
	most, name := 0.0, "-"
	for _, part := range []struct {
		name  string
		share float64
	}{{"store", s.Store}, {"spill", s.Spill}, {"encode", s.Encode}, {"consumer", s.Consumer}} {
		if part.share > most {
			most, name = part.share, part.name
		}
	}
	return name
}

// maxTopStreams is how many streams are shown to people.
const maxTopStreams = 40

func (v *topView) print(w io.Writer) error {
	state := ""
	if v.Draining {
		state = ", draining"
	}
	spill := "no spill"
	if v.SpillBudget > 0 {
		spill = fmt.Sprintf("spill %s of %s, %s of bytes from it", humanize.IBytes(uint64(v.SpillHeld)), humanize.IBytes(uint64(v.SpillBudget)), percent(v.SpillShare))
	}
	_, err := fmt.Fprintf(w, "%s%s  %s\n%s/s  %s rows/s  %d streams\nstore %s/s, p99 %s, %d reads in flight, %d failed, %d lost\n%s\nwindows %s of %s\n\n",
		printable(v.Server), state, v.At.Local().Format(time.TimeOnly),
		humanize.IBytes(uint64(v.BytesPerSec)), humanize.Comma(int64(v.RowsPerSec)), len(v.Streams),
		humanize.IBytes(uint64(v.StoreBytesPerS)), (time.Duration(v.StoreP99) * time.Microsecond).String(), v.ReadsInFlight, v.FailedReads, v.Lost,
		spill, humanize.IBytes(uint64(v.WindowUsed)), humanize.IBytes(uint64(v.WindowLimit)))
	if err != nil {
		return err
	}
	jobs := table{numbers: []bool{false, false, true, true, true, true, true}}
	jobs.add("JOB", "DATASET", "STREAMS", "EPOCH", "DONE", "LEFT", "SPILL")
	for _, j := range v.Jobs {
		left := "-"
		if j.LeftSecs != nil {
			left = time.Duration(*j.LeftSecs * float64(time.Second)).Round(time.Second).String()
		}
		jobs.add(abridged(j.Job), j.Dataset, humanize.Comma(int64(j.Streams)), fmt.Sprint(j.Epoch), percent(&j.Progress), left, percent(j.SpillShare))
	}
	if err := jobs.print(w); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	streams := table{numbers: []bool{true, false, false, false, true, true, true, true, true, true, false}}
	streams.add("ID", "KIND", "DATASET", "TENANT", "BYTES/S", "ROWS/S", "STORE", "SPILL", "ENCODE", "CONSUMER", "LIMIT")
	for _, s := range v.Streams[:min(len(v.Streams), maxTopStreams)] {
		streams.add(fmt.Sprint(s.ID), s.Kind, s.Dataset, s.Tenant, humanize.IBytes(uint64(s.BytesPerSec)), humanize.Comma(int64(s.RowsPerSec)),
			percent(&s.Store), percent(&s.Spill), percent(&s.Encode), percent(&s.Consumer), s.Limit)
	}
	if err := streams.print(w); err != nil {
		return err
	}
	if n := len(v.Streams) - maxTopStreams; n > 0 {
		_, err = fmt.Fprintf(w, "and %d more\n", n)
	}
	return err
}

// abridged is enough of an id to tell jobs apart.
func abridged(id string) string {
	return id[:min(len(id), 12)]
}
