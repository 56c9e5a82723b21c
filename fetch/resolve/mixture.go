package resolve

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"sort"
	"strconv"

	"github.com/apache/arrow/go/v17/arrow"
	"golang.org/x/sync/errgroup"

	"bowstring/fetch/manifest"
	"bowstring/fetch/operators"
	"bowstring/fetch/plan"
	"bowstring/schema"
)

// SourceError is an error in one source of a mixture.
type SourceError struct {
	Source int    // its index
	Name   string // in the request
	Err    error
}

// Error names the source.
func (e *SourceError) Error() string { return fmt.Sprintf("mixture, source %q: %s", e.Name, e.Err) }

// Unwrap returns the error without the source's name.
func (e *SourceError) Unwrap() error { return e.Err }

// sourcesAtOnce is how many sources of a mixture are opened at the same time.
const sourcesAtOnce = 16

// each calls do for all sources, several at once. The error of a mixture's source is a
// SourceError.
func each(ctx context.Context, sources []source, do func(context.Context, *source) error) error {
	if len(sources) == 1 && sources[0].name == "" {
		return do(ctx, &sources[0])
	}
	g, all := errgroup.WithContext(ctx)
	g.SetLimit(sourcesAtOnce)
	for i := range sources {
		g.Go(func() error {
			if err := do(all, &sources[i]); err != nil {
				return &SourceError{i, sources[i].name, err}
			}
			return nil
		})
	}
	err := g.Wait()
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// openMixture resolves a request for a mixture. The request names no tag.
func (rv *Resolver) openMixture(ctx context.Context, req schema.Request) (*Job, error) {
	asked := req.Mixture.Leaves()
	sources := make([]source, len(asked))
	for i := range asked {
		sources[i].name, sources[i].asks = asked[i].Called(), asked[i].Request()
	}
	err := each(ctx, sources, func(ctx context.Context, s *source) (err error) {
		s.snapshot, err = rv.snapshots.get(ctx, s.asks.Dataset, s.asks.Snapshot)
		return err
	})
	var rows *manifest.Union
	if err == nil {
		rows, req, err = unite(sources, req)
	}
	if err != nil {
		for i := range sources {
			sources[i].release()
		}
		return nil, err
	}
	return rv.openJob(ctx, rows, sources, req)
}

// unite assigns the job's positions to the sources, one after another, and puts the
// numbers of the snapshots into the request.
func unite(sources []source, req schema.Request) (*manifest.Union, schema.Request, error) {
	snaps, manifests := make([]*schema.Snapshot, len(sources)), make([]*manifest.Manifest, len(sources))
	base := int64(0)
	for i := range sources {
		s := &sources[i]
		manifests[i] = s.snapshot.manifest
		snaps[i] = manifests[i].Snapshot()
		s.asks.Snapshot, s.asks.Tag = s.snapshot.key.number, ""
		s.base = base
		base += manifests[i].Rows()
	}
	form, req, err := uniteForms(snaps, req)
	if err != nil {
		return nil, req, err
	}
	return manifest.NewUnion(form, manifests), req, nil
}

// uniteForms returns the common form of a mixture's snapshots. It also returns the
// request with the snapshots' numbers, and with the restriction of the common columns.
func uniteForms(snaps []*schema.Snapshot, req schema.Request) (*schema.Form, schema.Request, error) {
	if req.Place == schema.PlaceClient {
		return nil, req, &schema.FieldError{Field: "place", Got: strconv.Quote(req.Place) + " with mixture",
			Want: strconv.Quote("server") + ", as what operators draw depends on the source of a row"}
	}
	leaves := req.Mixture.Leaves()
	parts := make([]schema.Part, len(snaps))
	for i, snap := range snaps {
		s := &leaves[i]
		s.Snapshot, s.Tag = snap.Number, ""
		parts[i] = schema.Part{Name: s.Called(), Snapshot: snap, Within: s.Within}
	}
	form, within, err := schema.NewUnion(parts)
	req.Mixture, req.Within = req.Mixture.WithLeaves(leaves), within
	return form, req, err
}

// fillMixture is fill for a mixture. It uses the records of its snapshots alone.
func (rv *Resolver) fillMixture(ctx context.Context, snaps []*schema.Snapshot, req schema.Request) (schema.Request, shown,
	error) {
	form, req, err := uniteForms(snaps, req)
	if err != nil {
		return req, shown{}, err
	}
	return rv.fill(ctx, form.Snapshot(), req)
}

// MixtureSchema returns the schema of batches of a request for a mixture. snaps are the
// snapshots of its sources, in the order of the mixture's leaves.
func (rv *Resolver) MixtureSchema(ctx context.Context, snaps []*schema.Snapshot, req schema.Request) (*arrow.Schema, error) {
	_, s, err := rv.fillMixture(ctx, snaps, req)
	if err != nil {
		return nil, err
	}
	return s.projection.Schema, nil
}

// mixtureID is ID for a mixture. The request names no tag.
func (rv *Resolver) mixtureID(ctx context.Context, req schema.Request) (string, error) {
	leaves := req.Mixture.Leaves()
	known := req.Batch != 0 && req.Operators.Resolved()
	for i := range leaves {
		known = known && leaves[i].Snapshot != 0 && leaves[i].Operators.Resolved()
	}
	if known {
		return digest(req), nil
	}
	snaps := make([]*schema.Snapshot, len(leaves))
	for i := range snaps {
		s := &leaves[i]
		var err error
		if snaps[i], err = rv.store.Snapshot(ctx, s.Dataset, s.Snapshot); err != nil {
			return "", &SourceError{i, s.Called(), err}
		}
	}
	req, _, err := rv.fillMixture(ctx, snaps, req)
	if err != nil {
		return "", err
	}
	return digest(req), nil
}

// pinMixture is Pin for a mixture.
func (rv *Resolver) pinMixture(ctx context.Context, req schema.Request) (schema.Request, error) {
	leaves := req.Mixture.Leaves()
	for i := range leaves {
		s := &leaves[i]
		if s.Tag == "" {
			continue
		}
		number, err := rv.store.Tagged(ctx, s.Dataset, s.Tag)
		if err != nil {
			return req, &SourceError{i, s.Called(), err}
		}
		s.Snapshot, s.Tag = number, ""
	}
	req.Mixture = req.Mixture.WithLeaves(leaves)
	return req, nil
}

// compileSources compiles the operators of a mixture whose sources have operators of
// their own: for each source its own ones, then the mixture's. Each column has one form
// for all sources. The returned request has all operators in canonical form.
func (rv *Resolver) compileSources(snap *schema.Snapshot, req schema.Request) (schema.Request, shown, error) {
	parts, leaves := snap.Parts(), req.Mixture.Leaves()
	s := shown{own: make([]*operators.Set, len(parts))}
	canonical := schema.Operators{}
	for _, name := range req.Operators.Computed() {
		canonical[name] = req.Operators[name]
	}
	for i := range parts {
		var err error
		if s.own[i], err = rv.compileSource(&parts[i], &leaves[i], req.Operators, canonical); err != nil {
			return req, s, &SourceError{i, parts[i].Name, err}
		}
	}
	// A column with operators of the mixture that no source has is an error of the
	// request.
	for _, name := range req.Operators.Columns() {
		if _, ok := canonical[name]; ok {
			continue
		}
		// No source has it: the error lists what they have.
		if _, err := operators.CompileSet(rv.kinds, snap.Schema, req.Within, req.Operators); err != nil {
			return req, s, err
		}
	}
	s.operators = operators.Together(s.own, canonical)
	for _, name := range slices.Sorted(maps.Keys(s.operators.Forms())) {
		if err := checkForms(name, parts, s.own); err != nil {
			return req, s, err
		}
	}
	req.Mixture = req.Mixture.WithLeaves(leaves)
	return req, s, nil
}

// compileSource compiles the operators of a source, then those of its mixture. It writes
// the canonical form of the source's own into leaf, and that of the mixture's into
// canonical.
func (rv *Resolver) compileSource(part *schema.Part, leaf *schema.MixtureSource, mixture,
	canonical schema.Operators) (*operators.Set, error) {
	own, err := operators.CompileSet(rv.kinds, part.Snapshot.Schema, part.Within, leaf.Operators)
	if err != nil {
		return nil, err
	}
	if leaf.Operators != nil {
		leaf.Operators = own.Canonical()
	}
	joined := maps.Clone(own.Canonical())
	blobs := part.Within.Visible(part.Snapshot.Schema)
	for _, name := range mixture.Columns() {
		if !blobs.HasField(name) {
			continue
		}
		// The source's operators run first, and the mixture's on their result.
		first, last := joined[name], mixture[name]
		at := "operators." + schema.Shown(name)
		switch {
		case len(first.Steps) == 0 && first.Follows == "":
			joined[name] = last
			continue
		case first.Follows != "" || last.Follows != "":
			return nil, &schema.FieldError{Field: at,
				Got:  "operators of the source and of the mixture, and one list follows another column",
				Want: "those of the source, or of the mixture, left out"}
		case last.Kind != "" && last.Kind != first.Kind:
			return nil, &schema.FieldError{Field: at + ".kind",
				Got: fmt.Sprintf("%q, and %q in the mixture", first.Kind, last.Kind), Want: "one kind"}
		}
		last.Kind, last.Contract = first.Kind, cmp.Or(last.Contract, first.Contract)
		last.Steps = slices.Concat(first.Steps, last.Steps)
		joined[name] = last
	}
	set, err := operators.CompileSet(rv.kinds, part.Snapshot.Schema, part.Within, joined)
	if err != nil {
		return nil, err
	}
	// The mixture's part of a joined list is at its end. The first source that has the
	// column determines the canonical form; checkForms compares the others.
	for name, p := range set.Canonical() {
		if asked, ok := mixture[name]; ok && !asked.Computes() {
			if _, known := canonical[name]; !known {
				p.Steps = p.Steps[max(len(p.Steps)-len(asked.Steps), 0):]
				canonical[name] = p
			}
		}
	}
	return set, nil
}

// checkForms returns an error unless all sources that have a column serve it in one form.
func checkForms(name string, parts []schema.Part, sets []*operators.Set) error {
	first := -1
	for i := range parts {
		if !parts[i].Within.Visible(parts[i].Snapshot.Schema).HasField(name) {
			continue
		}
		if first < 0 {
			first = i
			continue
		}
		a, b := sets[first].Forms()[name], sets[i].Forms()[name]
		if !reflect.DeepEqual(a, b) {
			return &schema.FieldError{Field: "mixture",
				Got: fmt.Sprintf("column %s as %s in source %q and as %s in source %q", schema.Quote(name), formText(a),
					parts[first].Name, formText(b), parts[i].Name),
				Want: "operators that make one form of it in all sources, or none"}
		}
	}
	return nil
}

// formText describes a form for error messages.
func formText(f *schema.MadeForm) string {
	if f == nil {
		return "bytes as they are"
	}
	text, err := json.Marshal(f)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// picks are the words that requests have for how sources take turns, and ends those for what becomes of a source at its
// end.
var (
	// picks and ends translate the words of requests: how the next source is chosen, and
	// what happens when a source has been used up.
	picks = map[string]plan.Pick{"": plan.PickRandom, schema.PickRandom: plan.PickRandom, schema.PickExact: plan.PickExact,
		schema.PickOneSource: plan.PickOneSource}
	ends = map[string]plan.End{"": plan.Reshuffle, schema.EndReshuffle: plan.Reshuffle, schema.EndStop: plan.Stop,
		schema.EndDrop: plan.Leave}
)

// mix makes the mixture of a plan, for a request that has its defaults filled in.
func mix(req *schema.Request, sources []source, remainder plan.Remainder) (*plan.Mix, error) {
	m := req.Mixture
	cfg := plan.MixConfig{Rows: m.EpochSize, Batch: req.Batch, Remainder: remainder, Pick: picks[m.Pick]}
	if sh := req.Shuffle; sh != nil {
		cfg.Seed = sh.Seed
	}
	if c := m.Carried; c != nil {
		cfg.Begin, cfg.Counts = c.Epoch, c.Rows
	}
	leaves := m.Leaves()
	for i := range leaves {
		s := &sources[i]
		of := plan.Source{Selection: s.selection, Base: s.base, Positions: s.end() - s.base, End: ends[leaves[i].End]}
		if sh := req.Shuffle; sh != nil {
			of.Shuffle, of.Seed = true, plan.SourceSeed(sh.Seed, s.name)
			of.BlockRows, of.ClusterBlocks = sh.BlockRows, sh.Blocks
		}
		cfg.Sources = append(cfg.Sources, of)
	}
	// Weights are shares of samples. If the request gives shares of mixture.by, each is
	// divided by its source's mean. They are rational numbers, so that every node
	// computes the same plan.
	if m.Weighted() {
		for i, at := range m.Shares() {
			for k, share := range at.Shares {
				if sources[k].mean != nil {
					share.Quo(share, sources[k].mean)
				}
			}
			if i == 0 {
				cfg.Weights = plan.Weights(at.Shares)
			} else {
				cfg.Changes = append(cfg.Changes, plan.Change{Step: at.Step, Weights: plan.Weights(at.Shares)})
			}
		}
		return plan.NewMix(cfg)
	}
	rows := int64(0)
	for i := range leaves {
		n := leaves[i].Choose
		if n == 0 {
			all := math.Round(leaves[i].Repeat * float64(sources[i].selection.Len()))
			if all >= schema.MaxEpochSize {
				return nil, &schema.FieldError{Field: fmt.Sprintf("mixture, source %q: repeat", sources[i].name),
					Got: fmt.Sprint(leaves[i].Repeat), Want: "one that makes less than 2^62 rows"}
			}
			n = int64(all)
		}
		if n > schema.MaxEpochSize-rows {
			return nil, &schema.FieldError{Field: "mixture", Got: "sources of 2^62 rows and more in an epoch", Want: "fewer"}
		}
		rows += n
		cfg.Weights = append(cfg.Weights, uint64(n))
	}
	// Without weights the counts of rows are the weights, and their sum is the epoch.
	cfg.Rows = cmp.Or(m.EpochSize, rows)
	return plan.NewMix(cfg)
}

// mixEpoch is the epoch of the mixture that a request is for.
func mixEpoch(req *schema.Request) uint64 {
	if req.Shuffle == nil && req.Mixture.Carried != nil {
		return req.Mixture.Carried.Epoch
	}
	return epochOf(*req)
}

// Source describes a snapshot from which a job serves samples.
type Source struct {
	Name     string // in the request; "" if there is only one
	Dataset  string
	Snapshot int64
	Base     int64 // the job's position of its first sample
	End      int64 // the job's position after its last sample
}

// SnapshotName is the snapshot for messages: dataset@number.
func (s *Source) SnapshotName() string { return snapshotKey{s.Dataset, s.Snapshot}.String() }

// Sources is the number of the job's sources, 1 unless it is a mixture.
func (j *Job) Sources() int { return len(j.sources) }

// Source describes a source.
func (j *Job) Source(i int) Source {
	s := &j.sources[i]
	return Source{s.name, s.snapshot.key.dataset, s.snapshot.key.number, s.base, s.end()}
}

// SnapshotOf is the record of a source's snapshot.
func (j *Job) SnapshotOf(source int) *schema.Snapshot {
	return j.sources[source].snapshot.manifest.Snapshot()
}

// Locate returns the source of the sample at a position of the job, and the sample's
// position in its snapshot.
func (j *Job) Locate(position int64) (source int, at int64) {
	if len(j.sources) == 1 {
		return 0, position
	}
	source = sort.Search(len(j.sources), func(i int) bool { return j.sources[i].base > position }) - 1
	return source, position - j.sources[source].base
}

// Where is Locate with the name of the snapshot.
func (j *Job) Where(position int64) (snapshot string, at int64) {
	source, at := j.Locate(position)
	return j.sources[source].snapshot.key.String(), at
}

// SourceRows is the number of rows of the job's epoch that come from a source. Other
// epochs may have more or fewer.
func (o *Resolved) SourceRows(source int) int64 {
	mix := o.Plan.Config().Mix
	if mix == nil {
		return o.Plan.Rows()
	}
	steps, epoch := mix.EpochSteps(), int64(mixEpoch(&o.Request))
	return mix.Count(source, (epoch+1)*steps) - mix.Count(source, epoch*steps)
}

// Samples is the number of samples that a source selects.
func (o *Resolved) Samples(source int) int64 { return o.samples[source] }

// SourceRows is that of the job's Resolved.
func (j *Job) SourceRows(source int) int64 { return j.resolved.SourceRows(source) }

// Samples is that of the job's Resolved.
func (j *Job) Samples(source int) int64 { return j.resolved.Samples(source) }

// SourceEpoch is the epoch of its source in which a row of a mixture is used. The row is
// the one at an index of a plan of the job.
func (j *Job) SourceEpoch(p *plan.Plan, index int64) uint64 {
	source, before := p.Source(index)
	return uint64(before / j.resolved.samples[source])
}

// SourceSeed is the seed for the random numbers of a source's samples.
func (j *Job) SourceSeed(source int) uint64 {
	var seed uint64
	if sh := j.resolved.Request.Shuffle; sh != nil {
		seed = sh.Seed
	}
	if j.Alone() != nil {
		return seed
	}
	return plan.SourceSeed(seed, j.sources[source].name)
}

// SourceBytes is the mean size of the blobs that the job reads for a sample of a source.
func (j *Job) SourceBytes(source int) int64 {
	if j.Alone() != nil {
		return j.MeanBytes()
	}
	return meanBytes(j.rows.Snapshot().Chunks[source:source+1], j.resolved.Projection)
}

// Alike returns the samples that may replace the one at a position: the selected samples
// of its source. base is added to a position of the selection to get the job's.
func (j *Job) Alike(position int64) (selection plan.Selection, base int64) {
	source, _ := j.Locate(position)
	return j.sources[source].selection, j.sources[source].base
}
