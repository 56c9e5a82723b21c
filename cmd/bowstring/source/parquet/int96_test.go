package parquet

import (
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	pq "github.com/apache/arrow/go/v17/parquet"
)

func TestInt96(t *testing.T) {
	of := func(days int64, nanos uint64) (v pq.Int96) {
		binary.LittleEndian.PutUint64(v[:8], nanos)
		binary.LittleEndian.PutUint32(v[8:], uint32(int32(days+epochDay)))
		return v
	}
	const day = 86_400_000_000_000
	const last, rest = math.MaxInt64 / day, math.MaxInt64 % day
	for _, c := range []struct {
		v    pq.Int96
		unit arrow.TimeUnit
		want int64
		err  error
	}{
		{of(0, 0), arrow.Nanosecond, 0, nil},
		{of(0, 1), arrow.Nanosecond, 1, nil},
		{of(-1, day-1), arrow.Nanosecond, -1, nil},
		{of(last, rest), arrow.Nanosecond, math.MaxInt64, nil},
		{of(last, rest+1), arrow.Nanosecond, 0, errFar},
		{of(-last-1, day-rest-1), arrow.Nanosecond, math.MinInt64, nil},
		{of(-last-1, day-rest-2), arrow.Nanosecond, 0, errFar},
		{of(last, rest+1), arrow.Microsecond, 0, errFar}, // no whole microseconds
		{of(-719162, 0), arrow.Microsecond, -62135596800000000, nil},
		{of(2932896, 86399999999000), arrow.Microsecond, 253402300799999999, nil},
		{of(math.MaxInt32-epochDay, 0), arrow.Microsecond, 0, errFar},
		{of(0, day), arrow.Microsecond, 0, errDay},
	} {
		if got, err := int96(c.v, c.unit); !errors.Is(err, c.err) || err == nil && got != c.want {
			t.Errorf("%x in %s: %d, %v; want %d, %v", c.v, c.unit, got, err, c.want, c.err)
		}
	}
}
