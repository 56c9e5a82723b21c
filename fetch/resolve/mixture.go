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

// SourceError is an error of a source of a mixture.
type SourceError struct {
	Source int    // its index
	Name   string // in the request
	Err    error
}

// Error names the source.
func (e *SourceError) Error() string { return fmt.Sprintf("mixture, source %q: %s", e.Name, e.Err) }

// Unwrap returns the error.
func (e *SourceError) Unwrap() error { return e.Err }

// sourcesAtOnce is how many sources of a mixture are opened at the same time.
const sourcesAtOnce = 16

// each does something for all sources, several at once. An error of a mixture's says which source it is of.
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

// openMixture resolves a request for a mixture, which names no tag.
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

// unite gives the sources their places among the job's positions, and the request the snapshots' numbers.
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

// uniteForms is what the snapshots of a mixture have in common, and the request with their numbers, and with what of the
// columns exists.
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

// fillMixture is fill for a mixture of snapshots, by their records alone.
func (rv *Resolver) fillMixture(ctx context.Context, snaps []*schema.Snapshot, req schema.Request) (schema.Request, shown,
	error) {
	form, req, err := uniteForms(snaps, req)
	if err != nil {
		return req, shown{}, err
	}
	return rv.fill(ctx, form.Snapshot(), req)
}

// MixtureSchema is what batches of a request for a mixture look like. snaps are the snapshots of its sources.
func (rv *Resolver) MixtureSchema(ctx context.Context, snaps []*schema.Snapshot, req schema.Request) (*arrow.Schema, error) {
	_, s, err := rv.fillMixture(ctx, snaps, req)
	if err != nil {
		return nil, err
	}
	return s.projection.Schema, nil
}

// mixtureID is ID of a request for a mixture that names no tag.
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

// pinMixture is Pin of a request for a mixture.
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

// compileSources compiles the steps of a mixture whose sources have some of their own: for each source those, and behind
// them the mixture's. Each column has one form, whatever the source of a row. The request has all of them in full.
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

// compileSource compiles the steps of a source and of its mixture. It writes those of the source in full into it, and those
// of the mixture into canonical.
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

// checkForms checks that all sources which have a column serve it in one form.
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

// formText is a form as error messages name it.
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
	picks = map[string]plan.Pick{"": plan.PickRandom, schema.PickRandom: plan.PickRandom, schema.PickExact: plan.PickExact,
		schema.PickOneSource: plan.PickOneSource}
	ends = map[string]plan.End{"": plan.Reshuffle, schema.EndReshuffle: plan.Reshuffle, schema.EndStop: plan.Stop,
		schema.EndDrop: plan.Leave}
)

// mix makes the plan's part of a mixture, of a request that has its defaults filled in.
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
	cfg.Rows = cmp.Or(m.EpochSize, rows)
	return plan.NewMix(cfg)
}

// mixEpoch is which epoch of its mixture a request is of.
func mixEpoch(req *schema.Request) uint64 {
	if req.Shuffle == nil && req.Mixture.Carried != nil {
		return req.Mixture.Carried.Epoch
	}
	return epochOf(*req)
}

// Source is a snapshot that samples of a job are of.
type Source struct {
	Name     string // in the request; "" of the only one
	Dataset  string
	Snapshot int64
	Base     int64 // the job's position of its first sample
	End      int64 // and behind its last one
}

// SnapshotName is the snapshot as people write it: dataset@number.
func (s *Source) SnapshotName() string { return snapshotKey{s.Dataset, s.Snapshot}.String() }

// Sources is how many snapshots the samples of the job are of.
func (j *Job) Sources() int { return len(j.sources) }

// Source describes one of them.
func (j *Job) Source(i int) Source {
	s := &j.sources[i]
	return Source{s.name, s.snapshot.key.dataset, s.snapshot.key.number, s.base, s.end()}
}

// SnapshotOf is the record of the snapshot of a source.
func (j *Job) SnapshotOf(source int) *schema.Snapshot {
	return j.sources[source].snapshot.manifest.Snapshot()
}

// Locate says which of the sources has the sample at a position of the job, and where in its snapshot that is.
func (j *Job) Locate(position int64) (source int, at int64) {
	if len(j.sources) == 1 {
		return 0, position
	}
	source = sort.Search(len(j.sources), func(i int) bool { return j.sources[i].base > position }) - 1
	return source, position - j.sources[source].base
}

// Where names the snapshot that has the sample at a position of the job, and says where in it that is.
func (j *Job) Where(position int64) (snapshot string, at int64) {
	source, at := j.Locate(position)
	return j.sources[source].snapshot.key.String(), at
}

// SourceRows is how many of the rows of the job's epoch are of a source: other epochs may have more or fewer.
func (o *Resolved) SourceRows(source int) int64 {
	mix := o.Plan.Config().Mix
	if mix == nil {
		return o.Plan.Rows()
	}
	steps, epoch := mix.EpochSteps(), int64(mixEpoch(&o.Request))
	return mix.Count(source, (epoch+1)*steps) - mix.Count(source, epoch*steps)
}

// Samples is how many samples a source selects.
func (o *Resolved) Samples(source int) int64 { return o.samples[source] }

// SourceRows is as that of its Resolved.
func (j *Job) SourceRows(source int) int64 { return j.resolved.SourceRows(source) }

// Samples is as that of its Resolved.
func (j *Job) Samples(source int) int64 { return j.resolved.Samples(source) }

// SourceEpoch is the epoch of its source in which a row of a mixture is used: the row at an index of the order of a plan
// of the job.
func (j *Job) SourceEpoch(p *plan.Plan, index int64) uint64 {
	source, before := p.Source(index)
	return uint64(before / j.resolved.samples[source])
}

// SourceSeed is the seed by which numbers are drawn for the samples of a source.
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

// SourceBytes is how many bytes of blobs a sample of a source has on average that the job reads.
func (j *Job) SourceBytes(source int) int64 {
	if j.Alone() != nil {
		return j.MeanBytes()
	}
	return meanBytes(j.rows.Snapshot().Chunks[source:source+1], j.resolved.Projection)
}

// Alike are the samples among which one may be that takes the place of another: the selected ones of its source.
// base is what is added to them.
func (j *Job) Alike(position int64) (selection plan.Selection, base int64) {
	source, _ := j.Locate(position)
	return j.sources[source].selection, j.sources[source].base
}
