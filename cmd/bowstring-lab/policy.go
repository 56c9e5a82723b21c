package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"bowstring/cmd/bowstring/command"
	"bowstring/fetch/plan"
	"bowstring/schema"
	"bowstring/spill/replay"
)

// policyCmd is bowstring-lab policy. It compares cache policies on the same sequence of
// reads, in virtual time, with Belady's rule as the upper bound.
type policyCmd struct {
	Samples    int64       `default:"2000" placeholder:"N" help:"Samples of a dataset (default: ${default})."`
	Epochs     int64       `default:"10" placeholder:"N" help:"Epochs of a job (default: ${default})."`
	Cache      []share     `default:"10%,25%,50%,75%" placeholder:"SHARE" help:"Sizes of the cache, as shares of all samples (default: ${default})."`
	Jobs       []int       `default:"1,4" placeholder:"N" help:"Mixes of this many jobs on one dataset, with seeds, speeds (0.5 to 2) and starts (in the first two epochs) drawn by --seed (default: ${default}). The first job has speed 1 and start 0."`
	Job        []policyJob `sep:"none" placeholder:"KEY=VALUE,…" help:"A job of a mix of its own, in place of --jobs; repeated for each. Keys: dataset, samples, epochs, seed, speed (relative), start (in epochs of speed 1)."`
	Policy     []string    `default:"next-use,lru,fifo,static,score" placeholder:"NAME" help:"Policies (default: ${default})."`
	Candidates int         `default:"64" placeholder:"N" help:"How many candidates are compared at each eviction (default: ${default})."`
	Jitter     float64     `placeholder:"SHARE" help:"By how much the time of a sample varies, such as 0.5."`
	Seed       uint64      `default:"1" placeholder:"SEED" help:"Seed of all that is drawn (default: ${default})."`
	JSON       bool        `name:"json" help:"Print a JSON array."`
}

// share is a share of a whole, above 0 and up to 1.
type share float64

// UnmarshalText parses a share such as 25% or 0.25. The condition is written so that NaN
// fails it.
func (s *share) UnmarshalText(text []byte) error {
	number, percent := strings.CutSuffix(string(text), "%")
	v, err := strconv.ParseFloat(number, 64)
	if percent {
		v /= 100
	}
	if err != nil || !(v > 0 && v <= 1) {
		return fmt.Errorf("got %q, want a share such as 25%% or 0.25", text)
	}
	*s = share(v)
	return nil
}

// policyJob is one --job. A field of 0 was not given, and the common flag applies. seed
// is a pointer because 0 is a seed.
type policyJob struct {
	dataset         string
	samples, epochs int64
	seed            *uint64
	speed           float64
	start           float64
}

// UnmarshalText parses KEY=VALUE pairs that are separated by commas.
func (j *policyJob) UnmarshalText(text []byte) error {
	*j = policyJob{speed: 1}
	for field := range strings.SplitSeq(string(text), ",") {
		key, value, ok := strings.Cut(field, "=")
		if !ok {
			return fmt.Errorf("got %q, want KEY=VALUE", field)
		}
		var err error
		switch key {
		case "dataset":
			j.dataset = value
		case "samples":
			j.samples, err = positive(value)
		case "epochs":
			j.epochs, err = positive(value)
		case "seed":
			var seed uint64
			if seed, err = strconv.ParseUint(value, 10, 64); err != nil {
				err = fmt.Errorf("got %q, want 0 to 2^64-1", value)
			}
			j.seed = &seed
		case "speed":
			j.speed, err = number(value, 0.001, 1000)
		case "start":
			j.start, err = number(value, 0, 1000)
		default:
			return fmt.Errorf("got key %q, want dataset, samples, epochs, seed, speed or start", key)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	return nil
}

// number parses a finite number from least to most.
func number(s string, least, most float64) (float64, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v >= least && v <= most) {
		return 0, fmt.Errorf("got %q, want a number from %g to %g", s, least, most)
	}
	return v, nil
}

// positive parses an integer of 1 or more.
func positive(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("got %q, want 1 or more", s)
	}
	return n, nil
}

// Validate is called by kong.
func (c *policyCmd) Validate() error {
	switch {
	case c.Samples < 1 || c.Samples > 1<<30:
		return fmt.Errorf("--samples: got %d, want 1 to 2^30", c.Samples)
	case c.Epochs < 1:
		return fmt.Errorf("--epochs: got %d, want 1 or more", c.Epochs)
	case c.Candidates < 1:
		return fmt.Errorf("--candidates: got %d, want 1 or more", c.Candidates)
	case !(c.Jitter >= 0 && c.Jitter < 1):
		return fmt.Errorf("--jitter: got %v, want a share from 0 to below 1", c.Jitter)
	}
	for _, n := range c.Jobs {
		if n < 1 || n > 1024 {
			return fmt.Errorf("--jobs: got %d, want 1 to 1024", n)
		}
	}
	for _, name := range c.Policy {
		// The error of package replay names its own field. Here it has to name the flag.
		if _, err := replay.ParsePolicy(name, nil); err != nil {
			var bad *schema.FieldError
			if errors.As(err, &bad) {
				return fmt.Errorf("--policy: got %s, want %s", bad.Got, bad.Want)
			}
			return err
		}
	}
	return nil
}

// policyLine is the result of one policy on one mix and size.
type policyLine struct {
	Jobs       int     `json:"jobs"`
	Cache      float64 `json:"cache"` // share of all samples
	Policy     string  `json:"policy"`
	HitRate    float64 `json:"hit_rate"` // of all uses of a sample except its first, which no cache can hit
	Optimum    float64 `json:"optimum"`  // the hit rate of Belady's rule
	Ratio      float64 `json:"ratio"`    // HitRate / Optimum; 1 if the optimum is 0
	Hits       int64   `json:"hits"`
	Uses       int64   `json:"uses"`
	First      int64   `json:"first"`
	Stored     int64   `json:"stored"`
	Bypassed   int64   `json:"bypassed"`
	Evicted    int64   `json:"evicted"`
	Candidates int     `json:"candidates"`
	Seed       uint64  `json:"seed"`
}

// Run replays each policy on each mix and size. The trace of a mix is made once and all
// policies replay it, so that they differ by their decisions alone.
func (c *policyCmd) Run(app *command.App) error {
	// The order of the lines is mix, size, policy, which table relies on.
	var lines []policyLine
	mixes := make([][]replay.Job, 0, len(c.Jobs))
	if len(c.Job) > 0 {
		mixes = append(mixes, c.given())
	} else {
		for _, n := range c.Jobs {
			mixes = append(mixes, c.drawn(n))
		}
	}
	for _, mix := range mixes {
		trace, err := replay.NewTrace(mix, c.Seed)
		if err != nil {
			return err
		}
		for _, part := range c.Cache {
			// The cache holds samples of equal size, so that its capacity is a number of
			// them.
			capacity := int(float64(part) * float64(trace.Items()))
			best := trace.Optimum(capacity).HitRate()
			for _, name := range c.Policy {
				r, err := trace.Run(name, replay.Options{Capacity: capacity, Candidates: c.Candidates, Seed: c.Seed})
				if err != nil {
					return err
				}
				line := policyLine{
					Jobs: len(mix), Cache: float64(part), Policy: name, HitRate: r.HitRate(), Optimum: best, Ratio: 1,
					Hits: r.Hits, Uses: r.Uses, First: r.First, Stored: r.Stored, Bypassed: r.Bypassed,
					Evicted:    r.Evicted,
					Candidates: c.Candidates, Seed: c.Seed,
				}
				if best > 0 {
					line.Ratio = line.HitRate / best
				}
				lines = append(lines, line)
			}
		}
	}
	if c.JSON {
		return json.NewEncoder(app.Stdout).Encode(lines)
	}
	return c.table(app, lines)
}

// table prints a row for each mix and size, and a column for each policy. lines must have
// the policies as their innermost order, as Run makes them.
func (c *policyCmd) table(app *command.App, lines []policyLine) error {
	out := newTable(app.Stdout)
	out.row(append([]string{"JOBS", "CACHE", "OPTIMUM"}, c.Policy...)...)
	for row := range slices.Chunk(lines, max(1, len(c.Policy))) {
		cells := []string{
			strconv.Itoa(row[0].Jobs), strconv.FormatFloat(100*row[0].Cache, 'f', -1, 64) + "%",
			fmt.Sprintf("%.3f", row[0].Optimum),
		}
		for _, l := range row {
			cells = append(cells, fmt.Sprintf("%.3f", l.HitRate))
		}
		out.row(cells...)
	}
	return out.Flush()
}

// drawn returns a random mix of n jobs on one dataset. The first job always has speed 1
// and start 0, so that mixes of different sizes have a common reference.
func (c *policyCmd) drawn(n int) []replay.Job {
	rng := rand.New(rand.NewPCG(c.Seed, 0))
	mix := make([]replay.Job, n)
	for i := range mix {
		speed, start := 0.5+1.5*rng.Float64(), 2*rng.Float64()
		if i == 0 {
			speed, start = 1, 0
		}
		mix[i] = c.job(1, c.Samples, c.Epochs, rng.Uint64(), speed, start)
	}
	return mix
}

// given returns the mix that the --job flags describe. Datasets are numbered from 1 in
// the order of their first use. Without a seed of its own, each job gets a different one;
// equal seeds would read in the same order.
func (c *policyCmd) given() []replay.Job {
	numbers := map[string]uint32{}
	var mix []replay.Job
	for i, j := range c.Job {
		if numbers[j.dataset] == 0 {
			numbers[j.dataset] = uint32(len(numbers) + 1)
		}
		// Jobs on one dataset need different orders.
		seed := c.Seed + uint64(i)
		if j.seed != nil {
			seed = *j.seed
		}
		mix = append(mix, c.job(numbers[j.dataset], max(j.samples, 0), max(j.epochs, 0), seed, j.speed, j.start))
	}
	return mix
}

// job returns a job for the replay. Speed 1 is a thousand samples a second of virtual
// time. The unit is arbitrary, because only the ratio of speeds and starts affects the
// hits.
func (c *policyCmd) job(dataset uint32, samples, epochs int64, seed uint64, speed, start float64) replay.Job {
	if samples == 0 {
		samples = c.Samples
	}
	if epochs == 0 {
		epochs = c.Epochs
	}
	const unit = 1000
	return replay.Job{
		Dataset: dataset, Order: newEpochs(samples, seed), Epochs: epochs,
		Speed: unit * speed, Start: start * float64(samples) / unit, Jitter: c.Jitter,
	}
}

// epochs is the order of the shuffled epochs of a dataset, computed by the same plans as
// streams are served. It is safe for concurrent use. It keeps the plans of two epochs,
// because a policy compares uses in the current epoch with uses in the next one.
type epochs struct {
	all   plan.Selection
	seed  uint64
	plans [2]atomic.Pointer[plan.Plan]
}

// newEpochs returns the order of all samples of a dataset.
func newEpochs(samples int64, seed uint64) *epochs {
	return &epochs{all: plan.All(samples), seed: seed}
}

// plan returns the plan of an epoch. Two goroutines may both make a missing plan. The
// plans are equal, so that a lock would only save time.
func (e *epochs) plan(epoch int64) *plan.Plan {
	kept := &e.plans[epoch%2]
	if p := kept.Load(); p != nil && p.Config().Epoch == uint64(epoch) {
		return p
	}
	p, err := plan.New(plan.Config{
		Selection: e.all, Shuffle: true, Seed: e.seed, Epoch: uint64(epoch), Batch: 1, World: 1, Remainder: plan.Uneven,
	})
	if err != nil {
		panic(err) // the configuration is constant and valid
	}
	kept.Store(p)
	return p
}

// Rows implements spill.Order.
func (e *epochs) Rows() int64 { return e.all.Len() }

// Index implements spill.Order.
func (e *epochs) Index(epoch, position int64) (int64, bool) { return e.plan(epoch).Index(position) }

// Position implements replay.Order.
func (e *epochs) Position(epoch, index int64) int64 { return e.plan(epoch).Position(index) }
