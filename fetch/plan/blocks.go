package plan

import (
	"encoding/binary"
	"math/bits"
	"strconv"

	"bowstring/schema"
)

// MaxBlocks is how many blocks a cluster may have.
const MaxBlocks = 1 << 20

// blocks is an order for readers that read large pieces and cache little. Samples are cut
// into blocks of consecutive rows. The blocks are permuted, and grouped in that order into
// clusters of several blocks. Within each cluster the rows are permuted. A reader that
// holds a cluster reads each block once.
//
// It is computed by index in constant time, as is its inverse.
type blocks struct {
	n, rows     int64 // samples; rows of a block
	cluster     int64 // blocks
	places      Perm  // of blocks
	short       int64 // where the last block, which may be short, stands
	missing     int64 // rows that it lacks
	seed, epoch uint64
}

func newBlocks(n, rows, cluster int64, seed, epoch uint64) blocks {
	b := blocks{n: n, rows: rows, cluster: cluster, seed: seed, epoch: epoch}
	count := n / rows
	if rest := n % rows; rest > 0 {
		count++
		b.missing = rows - rest
	}
	b.places = NewPerm(uint64(count), blocksSeed(seed, 0), epoch)
	if count > 0 {
		b.short = int64(b.places.Index(uint64(count - 1)))
	}
	return b
}

// before is how many rows the blocks have that stand before a place.
func (b *blocks) before(place int64) int64 {
	rows := place * b.rows // beyond what an int64 holds where a short block makes it less again
	if place > b.short {
		rows -= b.missing
	}
	return rows
}

// placeOf is the place of the block that has the row at an index of the order of blocks.
func (b *blocks) placeOf(index int64) int64 {
	switch {
	case index < b.before(b.short):
		return index / b.rows
	case index < b.before(b.short+1):
		return b.short
	}
	return int64((uint64(index) + uint64(b.missing)) / uint64(b.rows)) // the sum may exceed what an int64 holds
}

// clusterOf returns where the cluster begins that has a place, how many rows it has, and how they change places.
func (b *blocks) clusterOf(place int64) (start int64, rows Perm) {
	number := place / b.cluster
	start = b.before(number * b.cluster)
	end := b.n
	if count := int64(b.places.Len()); count-number*b.cluster > b.cluster {
		end = b.before((number + 1) * b.cluster)
	}
	return start, NewPerm(uint64(end-start), blocksSeed(b.seed, uint64(number)+1), b.epoch)
}

// at is which sample stands at an index.
func (b *blocks) at(index int64) int64 {
	start, rows := b.clusterOf(b.placeOf(index))
	index = start + int64(rows.At(uint64(index-start)))
	place := b.placeOf(index)
	return int64(b.places.At(uint64(place)))*b.rows + index - b.before(place)
}

// index is at's inverse.
func (b *blocks) index(sample int64) int64 {
	place := int64(b.places.Index(uint64(sample / b.rows)))
	start, rows := b.clusterOf(place)
	return start + int64(rows.Index(uint64(b.before(place)+sample%b.rows-start)))
}

// blocksSeed is the seed by which the rows of a cluster change places: another one for each, and not that of the
// epoch's order. Number 0 is that of the blocks, cluster k has number k+1.
func blocksSeed(seed, number uint64) uint64 {
	s := splitmix64(seed ^ binary.LittleEndian.Uint64([]byte("blocks\x00\x00")))
	return s.next() ^ bits.RotateLeft64((number+1)*0x9e3779b97f4a7c15, 29)
}

func checkBlocks(cfg *Config) error {
	if cfg.BlockRows < 0 || cfg.BlockRows == 0 && cfg.ClusterBlocks != 0 {
		return &schema.FieldError{Field: "shuffle.block", Got: strconv.FormatInt(cfg.BlockRows, 10) + " rows",
			Want: "1 row or more"}
	}
	if cfg.BlockRows > 0 && (cfg.ClusterBlocks < 1 || cfg.ClusterBlocks > MaxBlocks) {
		return &schema.FieldError{Field: "shuffle.blocks", Got: strconv.FormatInt(cfg.ClusterBlocks, 10),
			Want: "1 to " + strconv.Itoa(MaxBlocks)}
	}
	return nil
}
