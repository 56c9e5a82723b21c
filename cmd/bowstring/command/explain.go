package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"bowstring/fetch"
	"bowstring/fetch/object"
	"bowstring/fetch/predict"
	"bowstring/flight"
	"bowstring/schema"
)

// ExplainCmd is bowstring explain. The server computes the prediction; this command
// prints it.
type ExplainCmd struct {
	// The flags of the request are those of get. The others describe the job and the
	// cluster that the prediction assumes.
	requestFlags
	Batch  int64         `placeholder:"N" help:"Rows of a global batch (default: the server's)."`
	Ranks  int64         `default:"1" placeholder:"N" help:"Ranks that share each batch (default: ${default})."`
	Order  string        `placeholder:"ORDER" help:"How strictly the order is kept: strict, window, window:K or free (default: strict)."`
	Assign string        `enum:",plan,local" default:"" placeholder:"HOW" help:"Which rank gets which samples of a step: plan or local (default: plan)."`
	Pace   time.Duration `placeholder:"DURATION" help:"What the ranks compute for a step, beside one another (default: nothing, they take what comes)."`
	Epochs int64         `default:"1" placeholder:"N" help:"Epochs (default: ${default})."`
	Nodes  int64         `placeholder:"N" help:"Nodes that own the dataset together (default: as many as there are)."`
	Cache  cacheSize     `placeholder:"SIZE" help:"Spill of each node, or none (default: the server's)."`
	Window size          `placeholder:"SIZE" help:"Window memory of each node (default: the server's)."`
	Rates  string        `type:"existingfile" placeholder:"FILE" help:"Rates that calibrate has written (default: what the server knows)."`
	Step   *int64        `placeholder:"N" help:"Of a mixture, say what will have been seen of its sources before step N, counted over all epochs (default: after all epochs)."`
	Look   time.Duration `default:"1s" placeholder:"DURATION" help:"For how long a job that runs is looked at, up to 10s (default: ${default})."`
	JSON   bool          `name:"json" help:"Print a JSON object."`
}

// cacheSize is a size, or none. bytes is nil if the server's own size applies, and 0 for
// none.
type cacheSize struct{ bytes *int64 }

// UnmarshalText parses a size, "auto" or "none".
func (c *cacheSize) UnmarshalText(text []byte) error {
	var n size
	if string(text) != "none" {
		if err := n.UnmarshalText(text); err != nil {
			return err
		}
		// parse gives 0 for auto alone: a size of 0 is an error.
		if n == 0 {
			return nil // auto: the server's size
		}
	}
	b := int64(n)
	c.bytes = &b
	return nil
}

// Help describes the output.
func (*ExplainCmd) Help() string {
	return `Says, from measured rates, how fast a job will be served, what will limit it (store, link, spill, node, network or consumer), when the first batch comes, how long it will
wait in each epoch, the smallest spill and window with which it would not wait, and what more nodes would bring. While a job of the same request runs, what was predicted stands
beside what is measured, with what has changed since the job began. The rates are those that calibrate has measured, or that streams have shown.`
}

// Validate is called by kong.
func (c *ExplainCmd) Validate() error {
	switch {
	case c.Epochs < 1 || c.Epochs >= 1<<31:
		return fmt.Errorf("--epochs: got %d, want 1 to 2^31-1", c.Epochs)
	case c.Nodes < 0 || c.Nodes > 1<<16:
		return fmt.Errorf("--nodes: got %d, want 1 to 65536", c.Nodes)
	case c.Pace < 0 || c.Pace > 24*time.Hour:
		return fmt.Errorf("--pace: got %s, want up to a day", c.Pace)
	case c.Look < 0 || c.Look > 10*time.Second:
		return fmt.Errorf("--look: got %s, want up to 10s", c.Look)
	}
	return errors.Join(c.check(), c.request().Check())
}

func (c *ExplainCmd) request() schema.Request {
	r := c.requestFlags.request()
	r.Batch, r.Order, r.Assign = c.Batch, c.Order, c.Assign
	if c.Ranks != 1 {
		// One rank is the default of a request, and needs no world.
		r.World = &schema.World{Size: c.Ranks}
	}
	return r
}

// explainBody is the body of the explain action. Fields of 0 mean the server's own
// values.
type explainBody struct {
	schema.Request
	// Units are in the names: durations in milliseconds and sizes in bytes.
	PaceMS      float64      `json:"pace_ms,omitempty"`
	Epochs      int64        `json:"epochs,omitempty"`
	Nodes       int64        `json:"nodes,omitempty"`
	CacheBytes  *int64       `json:"cache_bytes,omitempty"`
	WindowBytes int64        `json:"window_bytes,omitempty"`
	LookMS      int64        `json:"look_ms"`
	Step        *int64       `json:"step,omitempty"`
	Rates       *fetch.Rates `json:"rates,omitempty"`
}

// Run asks the server for the prediction and prints it. --json prints the server's answer
// itself, so that it has also fields that this version does not know.
func (c *ExplainCmd) Run(ctx context.Context, app *App) error {
	body := explainBody{
		Request: c.request(), PaceMS: float64(c.Pace) / float64(time.Millisecond), Epochs: c.Epochs, Nodes: c.Nodes,
		CacheBytes: c.Cache.bytes, WindowBytes: int64(c.Window), LookMS: c.Look.Milliseconds(),
		Step: c.Step,
	}
	// The server uses these rates instead of its own.
	if c.Rates != "" {
		r, err := readRates(c.Rates)
		if err != nil {
			return err
		}
		body.Rates = r
	}
	// The answer is decoded only for people.
	raw, err := ask[json.RawMessage](ctx, app, "explain", body)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(app.Stdout, raw)
	}
	var e flight.Explained
	if err := json.Unmarshal(raw, &e); err != nil {
		return unexpected("explain", err)
	}
	return printExplained(app.Stdout, &e)
}

// readRates reads and checks the rates in a file of calibrate.
func readRates(path string) (*fetch.Rates, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var file calibrationFile
	if err := json.Unmarshal(b, &file); err != nil {
		return nil, fmt.Errorf("--rates: %s: %w", path, err)
	}
	if err := file.Rates.Check(""); err != nil {
		return nil, fmt.Errorf("--rates: %s: %w", path, err)
	}
	return &file.Rates, nil
}

// printExplained prints a prediction for people. Errors of the single lines are ignored:
// the tables between them return the error of the same writer.
func printExplained(w io.Writer, e *flight.Explained) error {
	// The head repeats the conditions, because a prediction is only valid for them.
	c, p := &e.Conditions, e.Prediction
	fmt.Fprintf(w, "%s  %s of %s, batches of %s for %s, %s, pace %s\n", printable(e.Dataset), plural(c.Rows, "sample"),
		humanize.IBytes(uint64(c.RowBytes)),
		humanize.Comma(c.Batch), plural(c.Ranks, "rank"), plural(c.Epochs, "epoch"), paceOf(c.PaceMS))
	fmt.Fprintf(w, "%s, spill %s each (%s of the job held now), window %s each\n\n", plural(c.Nodes, "node"),
		humanize.IBytes(uint64(c.CacheBytes)),
		humanize.IBytes(uint64(c.HeldBytes)), humanize.IBytes(uint64(c.WindowBytes)))
	fmt.Fprintf(w, "limited by the %s: %s\n", p.Limit, printable(p.Because))
	fmt.Fprintf(w, "first batch after %s, %s samples/s in all, %s, %s of them waiting\n\n",
		millis(p.FirstBatchMS), rateOf(p.SamplesPerSec), seconds(p.Seconds), seconds(p.WaitSeconds))
	// An unmeasured rate counts as unlimited, so that the prediction is optimistic.
	if len(e.Unknown) > 0 {
		fmt.Fprintf(w, "not measured, and taken to limit nothing: %s; calibrate measures it\n\n",
			printable(strings.Join(e.Unknown, ", ")))
	}
	// A first epoch has an empty cache and later ones have not, so that each has a row.
	// HITS is the share of reads that the spill serves. WAITS is the time in which ranks
	// wait for data.
	t := tableOf("NODES", "EPOCH", ">SAMPLES/S", ">SECONDS", ">WAITS", ">HITS", "LIMIT")
	// More nodes follow after the cluster as it is, two lines each.
	row := func(nodes int64, name string, e *predict.Epoch) {
		t.add(humanize.Comma(nodes), name, rateOf(e.SamplesPerSec), seconds(e.Seconds), seconds(e.WaitSeconds),
			percent(&e.HitShare), string(e.Limit)+": "+e.Because)
	}
	row(c.Nodes, "first", &p.First)
	row(c.Nodes, "later", &p.Later)
	for i := range p.More {
		row(p.More[i].Nodes, "first", &p.More[i].First)
		row(p.More[i].Nodes, "later", &p.More[i].Later)
	}
	if err := t.print(w); err != nil {
		return err
	}
	// Both sizes are searched by the server for the predicted job.
	fmt.Fprintf(w, "\nsmallest spill of a node with which later epochs do not wait: %s\n",
		bytesOr(p.SmallestCache, "none, of whatever size"))
	fmt.Fprintf(w, "smallest window of a node with which no stream waits for memory: %s\n",
		bytesOr(p.SmallestWindow, "none, of whatever size"))
	// Each of the following parts exists only for some jobs.
	if e.Bill != nil {
		if err := printBill(w, e.Bill); err != nil {
			return err
		}
	}
	if e.Mixture != nil {
		if err := printMixture(w, e); err != nil {
			return err
		}
	}
	if e.Mixing != nil {
		fmt.Fprintf(w, "\n%s\n", printable(e.Mixing.String()))
	}
	// With weights, samples repeat within an epoch, and others are left out.
	if s := e.Sampling; s != nil {
		fmt.Fprintf(w, "\nan epoch of %s has about %s different ones of the %s selected, the one that comes most %.3g times; %s never come\n",
			plural(s.Rows, "sample"), humanize.Comma(int64(s.Distinct+.5)), humanize.Comma(s.Selected), s.Most,
			humanize.Comma(s.Never))
	}
	if r := e.Running; r != nil {
		return printRunning(w, r)
	}
	return nil
}

// printMixture prints how the sources of a mixture are consumed.
func printMixture(w io.Writer, e *flight.Explained) error {
	fmt.Fprintln(w)
	t := tableOf("SOURCE", "SNAPSHOT", ">SAMPLES", ">ROWS OF AN EPOCH", ">SHARE", ">ALL SEEN IN STEP", fmt.Sprintf(">SEEN BEFORE STEP %d",
		*e.SeenAt))
	for i := range e.Mixture {
		s := &e.Mixture[i]
		// FirstPass is nil for a source that is larger than what the job reads of it.
		first := "never"
		if s.FirstPass != nil {
			first = humanize.Comma(*s.FirstPass)
		}
		t.add(printable(s.Name), fmt.Sprintf("%s@%d", printable(s.Dataset), s.Snapshot), humanize.Comma(s.Samples),
			humanize.Comma(s.Rows), percent(&s.Share), first, percent(&s.Seen))
	}
	return t.print(w)
}

// printBill prints the costs of a job that reads from buckets.
func printBill(w io.Writer, b *flight.Bill) error {
	fmt.Fprintf(w, "\n%s of the blobs are in buckets (by a sample of %s); list prices of %s, bytes go %s\n",
		percent(&b.Share), humanize.Comma(int64(b.Looked)), printable(b.Dated), b.Transfer)
	for _, one := range b.Buckets {
		// A limit is learned from refused requests, or else the published one of the
		// cloud.
		how := "any number of reads a second, as far as is known"
		if one.PerSecond > 0 {
			how = count(one.PerSecond) + " reads a second, by what the cloud says"
			if one.Learned {
				how = count(one.PerSecond) + " reads a second, as learned"
			}
		}
		fmt.Fprintf(w, "  %s: %s of them; prices of %s; %s; to spare a request, %s are read in vain at most\n",
			printable(one.Bucket), percent(&one.Share), cmp.Or(printable(one.Priced), "nothing, as none are known"), how,
			humanize.IBytes(uint64(max(one.Gap, 0))))
	}
	// Each row is a plan of the server for reading the blobs.
	t := tableOf("ALL EPOCHS", ">REQUESTS", ">BYTES", ">FOR REQUESTS", ">FOR BYTES", ">IN ALL", ">AT LEAST")
	for i := range b.Plans {
		p := &b.Plans[i]
		// Hours is the least time in which the bucket's limits allow that many requests.
		hours := "any"
		if p.Hours > 0 {
			hours = seconds(3600 * p.Hours)
		}
		t.add(p.Plan, humanize.Comma(p.Requests), humanize.IBytes(uint64(max(p.Bytes, 0))), dollars(p.Cost.Requests),
			dollars(p.Cost.Transfer), dollars(p.Cost.Total), hours)
	}
	if err := t.print(w); err != nil {
		return err
	}
	// Transfers are listed in a constant order; a map has none.
	for _, way := range object.Transfers() {
		if m, ok := b.Elsewhere[way]; ok {
			fmt.Fprintf(w, "bytes of this run would cost %s if they went %s\n", dollars(m), way)
		}
	}
	return nil
}

// dollars returns an amount for people. From a dollar on it has cents, and below it two
// digits: most requests cost less than a cent.
func dollars(m object.Money) string {
	switch f := float64(m) / float64(object.Dollar); {
	case m == 0:
		return "$0"
	case m >= object.Dollar:
		return "$" + humanize.FormatFloat("#,###.##", f)
	default:
		return "$" + strconv.FormatFloat(f, 'g', 2, 64)
	}
}

// printRunning prints what a running job does, next to the prediction. The middle column
// is the prediction at the measured hit rate: it separates a wrong cache from a wrong
// rate.
func printRunning(w io.Writer, r *flight.Running) error {
	fmt.Fprintf(w, "\nit runs since %s: %s, %s epoch\n", r.Since.Local().Format(time.DateTime),
		plural(int64(r.Streams), "stream"), r.Epoch)
	// The prediction at the measured hit rate shows whether the cache or a rate differs.
	t := tableOf("", ">PREDICTED", ">AT THESE HITS", ">MEASURED")
	t.add("samples/s", rateOf(r.Predicted), rateOf(r.Expected), count(r.Samples))
	if err := t.print(w); err != nil {
		return err
	}
	fmt.Fprintf(w, "hits %s, measured over %s: limited by the %s; waits for store %s, spill %s, nodes %s, encoding "+
		"%s, consumer %s\n", percent(r.HitShare), seconds(r.Seconds), printable(r.Limit),
		percent(&r.Wait.Store), percent(&r.Wait.Spill), percent(&r.Wait.Peer), percent(&r.Wait.Encode),
		percent(&r.Wait.Consumer))
	// The server compares the measured rate with the prediction.
	if r.Parted {
		fmt.Fprintln(w, "they have parted by more than 15 %")
	}
	for _, ch := range r.Changed {
		fmt.Fprintf(w, "  %s was %s, is %s\n", printable(ch.Rate), count(ch.Then), count(ch.Now))
	}
	return nil
}

// rateOf returns a rate in samples a second.
func rateOf(r predict.Rate) string {
	if r == predict.Unlimited {
		return "any"
	}
	return count(float64(r))
}

// count returns a figure with about three digits.
func count(v float64) string {
	if v >= 1000 {
		return humanize.Comma(int64(v + 0.5))
	}
	return strings.TrimSuffix(fmt.Sprintf("%.3g", v), ".0")
}

// seconds returns a duration with a precision that fits its size.
func seconds(s float64) string {
	if s < 1 {
		return millis(1000 * s)
	}
	if s < 100 {
		return fmt.Sprintf("%.1f s", s)
	}
	return time.Duration(s * float64(time.Second)).Round(time.Second).String()
}

func millis(ms float64) string { return count(ms) + " ms" }

func paceOf(ms float64) string {
	if ms == 0 {
		return "none"
	}
	return millis(ms)
}

// bytesOr returns a size, or none if there is no size.
func bytesOr(n *int64, none string) string {
	if n == nil {
		return none
	}
	return humanize.IBytes(uint64(*n))
}
