package parquet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	pq "github.com/apache/arrow/go/v17/parquet"
)

// Times says what INT96 timestamps hold.
type Times struct {
	Far  bool // one is before 1677-09-21 or after 2262-04-11, where nanoseconds do not reach
	Fine bool // one has more than whole microseconds
}

// Or puts together what is known of two files.
func (t Times) Or(other Times) Times { return Times{t.Far || other.Far, t.Fine || other.Fine} }

const (
	epochDay    = 2_440_588 // the Julian day of 1970-01-01
	nanosOfDay  = 24 * int64(time.Hour)
	microsOfDay = nanosOfDay / 1000
)

var (
	errFar = errors.New("a timestamp that neither nanoseconds nor microseconds hold exactly")
	errDay = errors.New("an INT96 timestamp whose time of day has more than 24 hours")
)

// int96 is the timestamp of an INT96: eight bytes of nanoseconds of the day, four of the Julian day.
func int96(v pq.Int96, unit arrow.TimeUnit) (int64, error) {
	nanos, days := binary.LittleEndian.Uint64(v[:8]), int64(int32(binary.LittleEndian.Uint32(v[8:])))-epochDay
	if nanos >= uint64(nanosOfDay) {
		return 0, errDay
	}
	per, rest := nanosOfDay, int64(nanos)
	if unit == arrow.Microsecond {
		if rest%1000 != 0 {
			return 0, errFar
		}
		per, rest = microsOfDay, rest/1000
	}
	// The day before the epoch is counted back from its end, so that the lowest timestamp is reached.
	if days < 0 {
		days, rest = days+1, rest-per
	}
	whole, ok := multiplied(days, per)
	if !ok || rest > 0 && whole > math.MaxInt64-rest || rest < 0 && whole < math.MinInt64-rest {
		return 0, errFar
	}
	return whole + rest, nil
}

// multiplied is a product and whether it is one of int64; b is positive.
func multiplied(a, b int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(max(a, -a)), uint64(b))
	if a == math.MinInt64 || hi != 0 || lo > math.MaxInt64 {
		return 0, false
	}
	return a * b, true
}

// times reads the INT96 timestamps of a column.
func (f *File) times(n *node) (t Times, err error) {
	for _, c := range n.children {
		below, err := f.times(c)
		if err != nil {
			return t, err
		}
		t = t.Or(below)
	}
	if n.kind != kindLeaf || n.column.PhysicalType() != pq.Types.Int96 {
		return t, nil
	}
	l := f.leaf(n)
	for {
		more, err := l.read(4096)
		if err != nil {
			return t, err
		}
		values := l.values.(*dense[pq.Int96])
		for _, v := range values.v {
			if _, err := int96(v, arrow.Nanosecond); errors.Is(err, errFar) {
				t.Far = true
			} else if err != nil {
				return t, fmt.Errorf("%w", err)
			}
			t.Fine = t.Fine || binary.LittleEndian.Uint64(v[:8])%1000 != 0
		}
		l.drop(len(l.def), len(values.v))
		if !more {
			return t, nil
		}
	}
}
