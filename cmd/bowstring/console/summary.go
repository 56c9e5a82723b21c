package console

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"

	"bowstring/cmd/bowstring/export"
	"bowstring/schema"
)

const (
	// maxSummed is how many rows a summary reads. If a request has more, the summary
	// reads batches at equal distances.
	maxSummed = 1 << 18
	// summedBatch is the rows of such a batch. Smaller batches would spread better, and
	// cost more reads.
	summedBatch = 2048
	maxBins     = 40
	maxValues   = 50 // values of a column in the answer
	// maxDistinct bounds the memory for counting. Values beyond it are not counted, and
	// Many is set.
	maxDistinct = 1 << 14
	maxText     = 256 // bytes of a value that are compared
)

// summary is the distribution of a column's values. It has Values or Bins, never both.
type summary struct {
	Column string `json:"column"`
	Rows   int64  `json:"rows"`   // rows of the request
	Looked int64  `json:"looked"` // rows that were read
	Nulls  int64  `json:"nulls"`

	Values   []valueCount `json:"values,omitempty"` // most frequent first; classes in their order
	Distinct int64        `json:"distinct,omitempty"`
	Many     bool         `json:"many,omitempty"` // some distinct values were not counted

	Bins []bin    `json:"bins,omitempty"`
	Min  *float64 `json:"min,omitempty"`
	P50  *float64 `json:"p50,omitempty"`
	Mean *float64 `json:"mean,omitempty"`
	Max  *float64 `json:"max,omitempty"`
}

// valueCount is a value as text, and how often it was read.
type valueCount struct {
	Value string `json:"value"`
	Count int64  `json:"count"`
}

// bin counts the values in [From, To). The last bin includes To.
type bin struct {
	From  float64 `json:"from"`
	To    float64 `json:"to"`
	Count int64   `json:"count"`
}

// summary answers with the distribution of one column in a request.
func (q *query) summary() error {
	column := q.form.Get("column")
	if column == "" {
		return &schema.FieldError{Field: "column", Got: "nothing", Want: "the name of a metadata column"}
	}
	req, err := q.request(column)
	if err != nil {
		return err
	}
	s := summary{Column: column}
	if s.Rows, err = q.count(req); err != nil {
		return err
	}
	t := schema.Ticket{Request: req}
	// A stride reads every n-th batch. Reading the first rows would show one class only,
	// if the source is sorted.
	if s.Rows > maxSummed {
		t.Batch = summedBatch
		t.Stride = (s.Rows + maxSummed - 1) / maxSummed
	}
	counts := counter{texts: map[string]int64{}}
	if s.Rows > 0 {
		err = q.read(t, func(rec arrow.Record) (bool, error) { return true, counts.add(rec) })
	}
	if err != nil {
		return err
	}
	counts.sum(&s)
	answer(q.w, http.StatusOK, s)
	return nil
}

// counter collects the values of a column, batch by batch. One goroutine uses it.
type counter struct {
	// classes are the names of the column's classes; nil if it has none.
	classes []string
	texts   map[string]int64
	many    bool
	numbers []float64
	// nulls also counts NaN and infinite numbers, which no bin can hold.
	nulls  int64
	looked int64
}

// add counts the values of a record's only column. Ids and nested values are an error:
// each would be a value of its own.
func (c *counter) add(rec arrow.Record) error {
	f, col := rec.Schema().Field(0), rec.Column(0)
	c.classes = schema.Classes(f)
	number := numberOf(col)
	if number == nil && arrow.IsNested(col.DataType().ID()) || f.Name == schema.IDColumn {
		return &schema.FieldError{Field: "column", Got: schema.Quote(f.Name),
			Want: "a column of numbers, texts or truth values"}
	}
	for i := range int(rec.NumRows()) {
		c.looked++
		switch {
		case col.IsNull(i):
			c.nulls++
		case number != nil && c.classes == nil:
			if v := number(i); !math.IsNaN(v) && !math.IsInf(v, 0) {
				c.numbers = append(c.numbers, v)
			} else {
				c.nulls++ // no bin can hold it
			}
		default:
			c.text(short(fmt.Sprint(shown(export.Value(f, col, i))), maxText))
		}
	}
	return nil
}

// text counts a value of a column that is shown by its most frequent values.
func (c *counter) text(v string) {
	if _, known := c.texts[v]; !known && len(c.texts) >= maxDistinct {
		c.many = true
		return
	}
	c.texts[v]++
}

// numberOf returns a function that reads the values of a numeric column; nil for other
// types.
func numberOf(col arrow.Array) func(int) float64 {
	switch c := col.(type) {
	case *array.Int8:
		return func(i int) float64 { return float64(c.Value(i)) }
	case *array.Int16:
		return func(i int) float64 { return float64(c.Value(i)) }
	case *array.Int32:
		return func(i int) float64 { return float64(c.Value(i)) }
	case *array.Int64:
		return func(i int) float64 { return float64(c.Value(i)) }
	case *array.Uint8:
		return func(i int) float64 { return float64(c.Value(i)) }
	case *array.Uint16:
		return func(i int) float64 { return float64(c.Value(i)) }
	case *array.Uint32:
		return func(i int) float64 { return float64(c.Value(i)) }
	case *array.Uint64:
		return func(i int) float64 { return float64(c.Value(i)) }
	case *array.Float16:
		return func(i int) float64 { return float64(c.Value(i).Float32()) }
	case *array.Float32:
		return func(i int) float64 { return float64(c.Value(i)) }
	case *array.Float64:
		return c.Value
	}
	return nil
}

// sum fills in the summary. Classes keep their order, because it is that of the labels;
// other values come by frequency.
func (c *counter) sum(s *summary) {
	s.Looked, s.Nulls, s.Many = c.looked, c.nulls, c.many
	switch {
	case c.classes != nil:
		s.Distinct = int64(len(c.texts))
		for i, name := range c.classes[:min(len(c.classes), 1000)] {
			s.Values = append(s.Values, valueCount{name, c.texts[strconv.Itoa(i)]})
		}
	case len(c.texts) > 0:
		s.Distinct = int64(len(c.texts))
		for v, n := range c.texts {
			s.Values = append(s.Values, valueCount{v, n})
		}
		slices.SortFunc(s.Values, func(a, b valueCount) int {
			return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Value, b.Value))
		})
		s.Values = s.Values[:min(len(s.Values), maxValues)]
	case len(c.numbers) > 0:
		c.histogram(s)
	}
}

// histogram counts the numbers in bins of equal width. If the numbers are integers with a
// range below maxBins, each gets its own bin; wider ranges of integers get bins of a
// whole width, so that all bins hold equally many integers.
func (c *counter) histogram(s *summary) {
	slices.Sort(c.numbers)
	n := len(c.numbers)
	low, high, mid := c.numbers[0], c.numbers[n-1], c.numbers[n/2]
	mean, whole := 0.0, true
	// The mean is updated step by step: the sum of large values could overflow.
	for i, v := range c.numbers {
		mean += v/float64(i+1) - mean/float64(i+1) // the difference of two values could overflow
		whole = whole && v == math.Trunc(v)
	}
	s.Min, s.P50, s.Mean, s.Max = &low, &mid, &mean, &high
	bins, width := maxBins, (high-low)/maxBins
	switch {
	case low == high:
		bins, width = 1, 0
	case whole && high-low < maxBins:
		bins, width = int(high-low)+1, 1
	case math.IsInf(width, 0):
		return // the range exceeds float64
	case whole:
		width = math.Ceil((high - low + 1) / maxBins)
		bins = int(math.Ceil((high - low + 1) / width))
	}
	s.Bins = make([]bin, bins)
	for i := range s.Bins {
		s.Bins[i].From, s.Bins[i].To = low+float64(i)*width, low+float64(i+1)*width
	}
	for _, v := range c.numbers {
		at := 0
		if width > 0 {
			at = min(int((v-low)/width), bins-1)
		}
		s.Bins[at].Count++
	}
}
