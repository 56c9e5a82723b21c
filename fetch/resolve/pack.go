package resolve

import (
	"cmp"
	"context"
	"fmt"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/fetch/plan"
	"bowstring/fetch/store"
	"bowstring/fetch/where"
	"bowstring/schema"
)

// packFilled reports whether a request's pack has all of its defaults filled in.
func packFilled(p *schema.Pack) bool {
	return p.Window > 0 && p.By != "" && (p.Long != "" || p.By == schema.PackSplit)
}

// fillPack fills in the defaults of a request's pack, and checks the columns that it names.
func fillPack(snap *schema.Snapshot, req schema.Request) (*schema.Pack, error) {
	p := *req.Pack
	p.Window, p.By = cmp.Or(p.Window, schema.MaxPackWindow), cmp.Or(p.By, schema.PackBestFit)
	if p.By != schema.PackSplit {
		p.Long = cmp.Or(p.Long, schema.LongError)
	}
	return &p, checkPackLengths(snap, req.Within, p.Lengths)
}

// checkPackLengths returns an error unless the named column of document lengths has
// integers.
func checkPackLengths(snap *schema.Snapshot, within *schema.Restriction, name string) error {
	var have []string
	for _, f := range schema.MetaFields(snap.Schema) {
		if !arrow.IsInteger(f.Type.ID()) || within.Hides(snap.Schema, f.Name) {
			continue
		}
		if f.Name == name {
			return nil
		}
		have = append(have, f.Name)
	}
	if name == "" {
		return nil
	}
	return &schema.FieldError{Field: "pack.lengths", Got: schema.Quote(name),
		Want: "a column of integers: " + schema.ShownList(have)}
}

// packed returns the pack of a request that has its defaults filled in, and the lengths
// of its documents, each with a hold for the job; nil if the request has no pack. Jobs
// that pack the same documents in the same order share one.
func (rv *Resolver) packed(ctx context.Context, snap *openSnapshot, req schema.Request,
	selection plan.Selection) (packs, lengths *result, err error) {
	if req.Pack == nil {
		return nil, nil, nil
	}
	column := cmp.Or(req.Pack.Lengths, req.Pack.Column)
	ordinal, err := snap.manifest.Form().ColumnIndex(column)
	if err != nil {
		return nil, nil, err
	}
	if lengths, err = rv.measured(ctx, snap, "pack", column, false, ordinal); err != nil {
		return nil, nil, err
	}
	packs, err = rv.derive(ctx, snap.key, packKey(req), snap, func(ctx context.Context) (*result, error) {
		cfg := plan.PackConfig{Length: req.Pack.Length, Window: req.Pack.Window, Lengths: lengths.lengths}
		var err error
		if cfg.By, err = plan.ParsePackBy(req.Pack.By); err != nil {
			return nil, err
		}
		if cfg.Long, err = plan.ParseLong(req.Pack.Long); err != nil {
			return nil, err
		}
		if b := req.Pack.Balance; b != nil {
			if cfg.Cost, err = where.Tabulate(ctx, "len", "pack.balance.cost", b.Cost, cfg.Length, rv.turn); err != nil {
				return nil, err
			}
		}
		tenant := store.CallerFrom(ctx).Tenant
		// The pack refers to the lengths, so their memory counts for it as well.
		memory, err := rv.results.reserve(tenant, plan.PackBytes(cfg, selection.Len())+4*int64(len(cfg.Lengths)))
		if err != nil {
			return nil, fmt.Errorf("pack: %w", err)
		}
		p, err := plan.NewPack(cfg)
		if err != nil {
			memory.Release()
			return nil, err
		}
		return &result{pack: p, memory: memory, tenant: tenant}, nil
	})
	if err != nil {
		lengths.Release()
		return nil, nil, err
	}
	return packs, lengths, nil
}

// packKey names the pack of a request. It is the same in all epochs, for all ranks, and
// whatever columns are served.
func packKey(req schema.Request) string {
	p := *req.Pack
	p.Pad = nil
	what := schema.Request{Split: req.Split, Where: req.Where, Selection: req.Selection, Shuffle: withEpoch(req, 0).Shuffle,
		Batch: req.Batch, Pack: &p}
	return string(within(req, "pack\x00"+string(what.Marshal())))
}

// Packing describes how the documents of an epoch are packed; nil if they are not.
func (o *Resolved) Packing() *Packing {
	sum, ok := o.Plan.Packing()
	if !ok {
		return nil
	}
	p := &Packing{Documents: sum.Documents, Sequences: o.Plan.Sequences(), Parts: sum.Pieces, Tokens: sum.Tokens,
		Empty: sum.Empty, Long: sum.Long, LeftOut: sum.Cut, Padding: sum.Padding(o.Request.Pack.Length)}
	// The remainder either drops sequences at the end of an epoch or repeats some.
	p.Dropped = max(sum.Sequences-p.Sequences, 0)
	p.Padded = max(p.Sequences-sum.Sequences, 0)
	return p
}

// Packing describes how the documents of an epoch are packed into sequences.
type Packing struct {
	Documents int64 `json:"documents"` // selected documents
	Sequences int64 `json:"sequences"` // sequences that are served, over all ranks
	Parts     int64 `json:"parts"`     // pieces of documents in all sequences; as many as documents if none is cut
	Tokens    int64 `json:"tokens"`    // in all sequences
	Empty     int64 `json:"empty"`     // documents without tokens, which are in no sequence
	Long      int64 `json:"long"`      // documents that are longer than a sequence
	LeftOut   int64 `json:"left_out"`  // tokens of long documents that are in no sequence
	Dropped   int64 `json:"dropped"`   // sequences that the remainder leaves out
	Padded    int64 `json:"padded"`    // sequences that the remainder repeats
	// Padding is the share of the sequences' tokens that are padding.
	Padding float64 `json:"padding"`
	// Imbalance is the cost of the most expensive rank of a step over the mean of its
	// ranks, for some steps. Without costs it counts tokens. 0: not computed.
	Imbalance float64 `json:"imbalance,omitempty"`
}

// imbalanceSteps is how many steps are sampled for the imbalance of ranks. The window of
// each has to be packed, which takes milliseconds.
const imbalanceSteps = 16

// Bucketing describes how evenly samples that are grouped by length are spread over
// ranks.
type Bucketing struct {
	// Imbalance is the cost of the most expensive rank of a step over the mean of its
	// ranks, for some steps.
	Imbalance float64 `json:"imbalance"`
}

// Bucketing computes the imbalance of ranks over some steps of the plan; nil if samples
// have no costs.
func (j *Job) Bucketing() *Bucketing {
	if by := j.resolved.Request.BucketByLength; by == nil || by.Balance == nil {
		return nil
	}
	imbalance, ok := j.Plan().Imbalance(imbalanceSteps)
	if !ok {
		return nil
	}
	return &Bucketing{imbalance}
}

// Balance sets Imbalance from some steps of the plan.
func (p *Packing) Balance(of *plan.Plan) { p.Imbalance, _ = of.Imbalance(imbalanceSteps) }

// prepare packs the documents of the request's epoch in turns. Afterwards its plan is
// made without delay.
func (rv *Resolver) prepare(ctx context.Context, req schema.Request, sources []source, has *holdings) error {
	cfg, err := planConfig(req, sources, nil, has)
	if err != nil {
		return err
	}
	return cfg.Pack.Prepare(cfg, func(piece func() error) error { return rv.turn(ctx, piece) })
}
