package plan

// order is the order in which the samples of a selection come. Implementers are immutable, allocate nothing when asked,
// and compute both ways by index. In most of them a sample comes once; where samples are drawn or mixed it may come
// several times, or never.
type order interface {
	// at is which sample of the selection stands at an index.
	at(index int64) int64
	// next is the first index, from an index on, at which a sample of the selection stands. ok is false if there is none.
	next(sample, from int64) (index int64, ok bool)
}

// estimating is an order whose next is only about right where estimates says so.
type estimating interface{ estimates() bool }

// newOrder is the order of an epoch of n samples.
func newOrder(cfg *Config, n int64) order {
	switch {
	case cfg.Mix != nil:
		return &mixed{mix: cfg.Mix, start: cfg.Mix.startOf(cfg), rows: n}
	case cfg.Weights != nil && cfg.Replacement:
		return newDrawn(cfg.Weights, n, cfg.Seed, cfg.Epoch)
	case cfg.Weights != nil:
		return newByShare(cfg.Weights, n, cfg.Seed, cfg.Epoch)
	case cfg.Balance != nil:
		return newBalanced(cfg.Balance, n, cfg.Seed, cfg.Epoch)
	case cfg.Shuffle && cfg.BlockRows > 0:
		b := newBlocks(n, cfg.BlockRows, cfg.ClusterBlocks, cfg.Seed, cfg.Epoch)
		return &b
	case cfg.Shuffle:
		return &shuffled{NewPerm(uint64(n), cfg.Seed, cfg.Epoch)}
	}
	return ascending{}
}

// ascending is the order of the selection itself.
type ascending struct{}

func (ascending) at(index int64) int64 { return index }

func (ascending) next(sample, from int64) (int64, bool) { return sample, sample >= from }

// shuffled is the order of a permutation.
type shuffled struct{ perm Perm }

func (s *shuffled) at(index int64) int64 { return int64(s.perm.At(uint64(index))) }

func (s *shuffled) next(sample, from int64) (int64, bool) {
	index := int64(s.perm.Index(uint64(sample)))
	return index, index >= from
}

func (b *blocks) next(sample, from int64) (int64, bool) {
	index := b.index(sample)
	return index, index >= from
}
