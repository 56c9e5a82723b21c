package resolve

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"

	"bowstring/fetch/plan"
	"bowstring/fetch/store"
	"bowstring/fetch/where"
	"bowstring/schema"
)

// maxClassText bounds the size of the names of a column's classes, all together.
const maxClassText = 4 << 20

// sample computes the weights or classes of the selected rows, with a hold for the job;
// nil if the request has no sample.
func (rv *Resolver) sample(ctx context.Context, snap *openSnapshot, req schema.Request,
	selection plan.Selection) (*result, error) {
	if req.Sample == nil || selection.Len() == 0 {
		return nil, nil //nolint:nilnil // there is nothing to draw
	}
	by := *req.Sample
	by.Replacement, by.EpochSize = nil, 0 // weights are the same
	what := schema.Request{Split: req.Split, Where: req.Where, Selection: req.Selection, Sample: &by}
	return rv.derive(ctx, snap.key, string(within(req, "sample\x00"+string(what.Marshal()))), snap,
		func(ctx context.Context) (*result, error) {
			d := &sampled{rv: rv, snap: snap, req: req, selection: selection, tenant: store.CallerFrom(ctx).Tenant}
			compute := d.weights
			if req.Sample.Balance != "" {
				compute = d.balance
			}
			r, err := compute(ctx)
			if errors.Is(err, schema.ErrDataLoss) {
				err = fmt.Errorf("manifest of %s: %w", snap.key, err)
			}
			return r, err
		})
}

// checkSample checks a request's sample as far as that is possible without rows.
func checkSample(snap *schema.Snapshot, req schema.Request) error {
	if req.Sample == nil || req.Sample.Balance == "" {
		return nil
	}
	var have []string
	for _, f := range schema.MetaFields(snap.Schema) {
		if !classifies(f.Type) || req.Within.Hides(snap.Schema, f.Name) {
			continue
		}
		if f.Name == req.Sample.Balance {
			return nil
		}
		have = append(have, f.Name)
	}
	return &schema.FieldError{Field: "sample.balance", Got: schema.Quote(req.Sample.Balance),
		Want: "a column of integers, texts or bools: " + schema.ShownList(have)}
}

// classifies reports whether values of a type can be the classes of a balance.
func classifies(t arrow.DataType) bool {
	switch t.ID() {
	case arrow.BOOL, arrow.STRING, arrow.LARGE_STRING:
		return true
	}
	return arrow.IsInteger(t.ID())
}

// sampled computes the weights, classes or costs of the selected rows of one snapshot.
type sampled struct {
	rv        *Resolver
	snap      *openSnapshot
	req       schema.Request
	selection plan.Selection
	tenant    string
}

// turns returns a function that runs pieces of work in turns, until ctx ends.
func (d *sampled) turns(ctx context.Context) func(piece func() error) error {
	return func(piece func() error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return d.rv.turn(ctx, piece)
	}
}

// rows are the selected rows of a page: those at offsets. The first is the index-th of
// the selection, and the others follow it.
type rows struct {
	start   int64 // position of the page's first row
	page    *schema.Page
	index   int64
	offsets []int
}

// position is the position of the i-th row.
func (r *rows) position(i int) int64 { return r.start + int64(r.offsets[i]) }

// walk visits the selected rows page by page, in any order and several pages at once.
// Pages without selected rows are not read.
func (d *sampled) walk(ctx context.Context, visit func(ctx context.Context, r *rows) error) error {
	m := d.snap.manifest
	need := func(start int64, run *schema.Chunk) bool { return d.selection.CountIn(start, start+run.Rows) > 0 }
	return m.Walk(ctx, 0, m.Rows(), need, func(ctx context.Context, start int64, p *schema.Page) error {
		r := &rows{start: start, page: p}
		for row := range p.Rows() {
			i, ok := d.selection.Index(start + int64(row))
			if !ok {
				continue
			}
			if len(r.offsets) == 0 {
				r.index, r.offsets = i, make([]int, 0, p.Rows()-row)
			}
			r.offsets = append(r.offsets, row)
		}
		if len(r.offsets) == 0 {
			return nil
		}
		return visit(ctx, r)
	})
}

// weights reads the weight of each selected row.
func (d *sampled) weights(ctx context.Context) (*result, error) {
	n := d.selection.Len()
	memory, err := d.rv.results.reserve(d.tenant, plan.SampleWeightsBytes(n))
	if err != nil {
		return nil, fmt.Errorf("sample.weights keeps about four bytes for each of %d rows: %w", n, err)
	}
	w := plan.NewSampleWeights(n)
	err = d.readWeights(ctx, w)
	if err == nil {
		err = w.Freeze(d.turns(ctx))
	}
	if err == nil && w.Positive() == 0 {
		err = &schema.FieldError{Field: "sample.weights", Got: fmt.Sprintf("a weight of 0 for each of %d rows", n),
			Want: "a row with a weight of more than 0"}
	}
	if err != nil {
		memory.Release()
		return nil, err
	}
	return &result{weights: w, memory: memory, tenant: d.tenant}, nil
}

// readWeights sets the weights. Rows of several pages are set concurrently, each once.
func (d *sampled) readWeights(ctx context.Context, w *plan.SampleWeights) error {
	return d.numbers(ctx, "sample.weights", d.req.Sample.Weights, func(r *rows, i int, v float64) {
		w.Set(r.index+int64(i), v)
	})
}

// costs returns the cost of each sample by a request's balance, by position, with a hold
// for the caller. Samples that are not selected cost nothing.
func (rv *Resolver) costs(ctx context.Context, snap *openSnapshot, req schema.Request,
	selection plan.Selection) (*result, error) {
	what := schema.Request{Split: req.Split, Where: req.Where, Selection: req.Selection,
		BucketByLength: &schema.BucketByLength{Balance: req.BucketByLength.Balance}}
	return rv.derive(ctx, snap.key, string(within(req, "costs\x00"+string(what.Marshal()))), snap,
		func(ctx context.Context) (*result, error) {
			d := &sampled{rv: rv, snap: snap, req: req, selection: selection, tenant: store.CallerFrom(ctx).Tenant}
			n := snap.manifest.Rows()
			memory, err := rv.results.reserve(d.tenant, 4*n)
			if err != nil {
				return nil, fmt.Errorf("%s keeps four bytes for each of %d rows: %w", costField, n, err)
			}
			costs := make(plan.Costs, n)
			// Pages are visited concurrently, and each has its own rows.
			err = d.numbers(ctx, costField, req.BucketByLength.Balance.Cost, func(r *rows, i int, v float64) {
				costs[r.position(i)] = measureFloat(float32(v))
			})
			if err != nil {
				memory.Release()
				return nil, err
			}
			return &result{costs: costs, memory: memory, tenant: d.tenant}, nil
		})
}

// numbers reads a number of 0 or more for each selected row, from a column or an
// expression. field is the request's field, for errors. set is called concurrently for
// rows of different pages. A null, a negative or a too large number is an error that
// names the position.
func (d *sampled) numbers(ctx context.Context, field, text string, set func(r *rows, i int, v float64)) error {
	snap := d.snap.manifest.Snapshot()
	// A column needs no evaluation.
	if column, ok := numberColumn(snap, d.req.Within, text); ok {
		return d.walk(ctx, func(ctx context.Context, r *rows) error {
			return d.rv.turn(ctx, func() error {
				return schema.Guard(func() error {
					a := r.page.Column(column)
					number := numbersOf(a)
					for i, at := range r.offsets {
						if a.IsNull(at) {
							return noNumber(field, r.position(i), "null")
						}
						v := number(at)
						if !plan.IsWeight(v) {
							return noNumber(field, r.position(i), strconv.FormatFloat(v, 'g', -1, 64))
						}
						set(r, i, v)
					}
					return nil
				})
			})
		})
	}
	maker, err := d.rv.number(ctx, snap, d.req.Within, field, text)
	if err != nil {
		return err
	}
	if err := maker.CheckRows(d.selection.Len()); err != nil {
		return err
	}
	return d.walk(ctx, func(ctx context.Context, r *rows) error {
		positions, list := make([]int64, len(r.offsets)), make([]schema.Row, len(r.offsets))
		for i, at := range r.offsets {
			positions[i], list[i] = r.position(i), schema.Row{Page: r.page, At: at}
		}
		v, faults, err := maker.Make(ctx, d.snap.manifest.Form(), positions, list, d.rv.turn)
		if err != nil {
			return err
		}
		if len(faults) > 0 {
			return faultAt(positions[faults[0].Row], faults[0].Err)
		}
		null, number := madeNumbers(&v)
		for i := range r.offsets {
			if null(i) {
				return noNumber(field, positions[i], "null")
			}
			v := number(i)
			if !plan.IsWeight(v) {
				return noNumber(field, positions[i], strconv.FormatFloat(v, 'g', -1, 64))
			}
			set(r, i, v)
		}
		return nil
	})
}

// faultAt adds the position to the error of an expression.
func faultAt(position int64, err error) error {
	if e, ok := errors.AsType[*where.Error](err); ok {
		at := *e
		at.Message = fmt.Sprintf("position %d: %s", position, e.Message)
		return &at
	}
	return err
}

// number compiles an expression with a number for each row, over the columns that the
// caller may see. field is the request's field, for errors.
func (rv *Resolver) number(ctx context.Context, snap *schema.Snapshot, within *schema.Restriction,
	field, text string) (*where.Maker, error) {
	maker, err := where.CompileNumber(ctx, "numbers", field, text, within.Visible(snap.Schema), rv.turn)
	if err != nil {
		return nil, err
	}
	for _, used := range maker.Columns() { // as checkHidden does
		if within.Hides(snap.Schema, used) {
			return nil, &where.Error{Line: 1, Column: 1, Field: field, Message: fmt.Sprintf("no column %q", used)}
		}
	}
	return maker, nil
}

// checkCost checks the costs of a request's balance, as far as that is possible without
// rows.
func (rv *Resolver) checkCost(ctx context.Context, snap *schema.Snapshot, req schema.Request) error {
	if req.BucketByLength == nil || req.BucketByLength.Balance == nil {
		return nil
	}
	cost := req.BucketByLength.Balance.Cost
	if _, ok := numberColumn(snap, req.Within, cost); ok {
		return nil
	}
	_, err := rv.number(ctx, snap, req.Within, costField, cost)
	return err
}

// costField is the request's field of costs, for errors.
const costField = "bucket_by_length.balance.cost"

// numberColumn finds the metadata column with a name, if it has numbers or bools. Other
// texts are expressions.
func numberColumn(snap *schema.Snapshot, within *schema.Restriction, name string) (column int, ok bool) {
	at := snap.Schema.FieldIndices(name)
	if len(at) == 0 || within.Hides(snap.Schema, name) {
		return 0, false
	}
	f := snap.Schema.Field(at[0])
	return at[0], !schema.IsBlob(f) && (measures(f.Type) || f.Type.ID() == arrow.BOOL)
}

// noNumber is the error for a row whose number cannot be used.
func noNumber(field string, position int64, got string) error {
	return &schema.FieldError{Field: field, Got: fmt.Sprintf("%s at position %d", got, position),
		Want: fmt.Sprintf("a number from 0 to %.4g in each row; where leaves rows out, and x ?? 0 stands for a null x",
			math.MaxFloat32)}
}

// numbersOf returns a function for the values of a column that numberColumn found.
func numbersOf(a arrow.Array) func(row int) float64 {
	switch a := a.(type) {
	case *array.Boolean:
		return func(row int) float64 {
			if a.Value(row) {
				return 1
			}
			return 0
		}
	case *array.Int8:
		return floats(a.Int8Values())
	case *array.Int16:
		return floats(a.Int16Values())
	case *array.Int32:
		return floats(a.Int32Values())
	case *array.Int64:
		return floats(a.Int64Values())
	case *array.Uint8:
		return floats(a.Uint8Values())
	case *array.Uint16:
		return floats(a.Uint16Values())
	case *array.Uint32:
		return floats(a.Uint32Values())
	case *array.Uint64:
		return floats(a.Uint64Values())
	case *array.Float16:
		return func(row int) float64 { return float64(a.Value(row).Float32()) }
	case *array.Float32:
		return floats(a.Float32Values())
	case *array.Float64:
		return floats(a.Float64Values())
	}
	panic(fmt.Sprintf("a defect of the server: numbers of type %s", a.DataType()))
}

// floats returns a function for values as float64.
func floats[T int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64 | float32 | float64](
	v []T) func(int) float64 {
	return func(row int) float64 { return float64(v[row]) }
}

// madeNumbers returns functions for the values of a column that an expression has made.
// Its type is one that where.CompileNumber produces.
func madeNumbers(v *schema.Vector) (null func(row int) bool, number func(row int) float64) {
	bit := func(b *schema.Buffer, row int) bool { return b.Pieces[0][row/8]>>(row%8)&1 == 1 }
	values := &v.Buffers[1]
	null = func(row int) bool { return v.Nulls > 0 && !bit(&v.Buffers[0], row) }
	switch v.Type.ID() {
	case arrow.BOOL:
		return null, func(row int) float64 {
			if bit(values, row) {
				return 1
			}
			return 0
		}
	case arrow.INT64:
		return null, func(row int) float64 { return float64(int64(binary.LittleEndian.Uint64(values.Pieces[0][8*row:]))) }
	case arrow.UINT64:
		return null, func(row int) float64 { return float64(binary.LittleEndian.Uint64(values.Pieces[0][8*row:])) }
	}
	return null, func(row int) float64 {
		return math.Float64frombits(binary.LittleEndian.Uint64(values.Pieces[0][8*row:]))
	}
}

// balance reads the class of each selected row, and makes classes appear in shares.
func (d *sampled) balance(ctx context.Context) (*result, error) {
	n := d.selection.Len()
	if n > plan.MaxBalanced {
		return nil, &schema.FieldError{Field: "sample.balance", Got: fmt.Sprintf("%d rows", n),
			Want: fmt.Sprintf("at most %d", int64(plan.MaxBalanced))}
	}
	// The number of classes is unknown until all rows are read. So the memory for the
	// largest number is reserved first, and shrunk afterwards.
	most := plan.BalanceBytes(n, plan.MaxClasses, plan.MaxPeriod+plan.MaxClasses) + maxClassText
	memory, err := d.rv.results.reserve(d.tenant, most)
	if err != nil {
		return nil, fmt.Errorf("sample.balance keeps six bytes for each of %d rows, and a table of classes: %w", n, err)
	}
	r, err := d.balanced(ctx, n)
	if err != nil {
		memory.Release()
		return nil, err
	}
	// The unused part of the reservation is released.
	took := plan.BalanceBytes(n, int64(len(r.classes)), r.balance.Period())
	for _, name := range r.classes {
		took += int64(len(name)) + 16
	}
	memory.Shrink(most - min(took, most))
	r.memory, r.tenant = memory, d.tenant
	return r, nil
}

// balanced reads the classes, numbers them, and makes the balance.
func (d *sampled) balanced(ctx context.Context, n int64) (*result, error) {
	column, err := d.snap.manifest.Form().ColumnIndex(d.req.Sample.Balance)
	if err != nil {
		return nil, err
	}
	// Classes are numbered as they are found, because pages are read concurrently. sort
	// then gives numbers that do not depend on that order: the plan has to be the same on
	// each node.
	numbers := &classNumbers{of: map[string]uint16{}}
	classes := make(plan.Classes, n)
	err = d.walk(ctx, func(ctx context.Context, r *rows) error {
		return d.rv.turn(ctx, func() error {
			return schema.Guard(func() error { return numbers.read(r, r.page.Column(column), classes[r.index:]) })
		})
	})
	if err != nil {
		return nil, err
	}
	turns := d.turns(ctx)
	names, err := numbers.sort(classes, arrow.IsInteger(d.snap.manifest.Snapshot().Schema.Field(column).Type.ID()), turns)
	if err != nil {
		return nil, err
	}
	parts, err := d.parts(names)
	if err != nil {
		return nil, err
	}
	b, err := plan.NewBalance(classes, parts, turns)
	if err != nil {
		return nil, err
	}
	return &result{balance: b, classes: names}, nil
}

// classNumbers numbers classes in the order in which they are first seen. It is safe for
// concurrent use.
type classNumbers struct {
	mu    sync.Mutex
	of    map[string]uint16 // guarded by mu
	names []string          // guarded by mu
	bytes int               // guarded by mu
}

// number returns the number of a class. Too many classes, or too long names, are an error
// of the request.
func (c *classNumbers) number(name string) (uint16, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n, ok := c.of[name]; ok {
		return n, nil
	}
	if c.bytes += len(name); len(c.names) == plan.MaxClasses || c.bytes > maxClassText/2 {
		return 0, &schema.FieldError{Field: "sample.balance", Got: fmt.Sprintf("more than %d different values",
			len(c.names)), Want: fmt.Sprintf("a column with at most %d, whose texts have %d bytes together", plan.MaxClasses,
			maxClassText/2)}
	}
	name = strings.Clone(name) // it may be memory of a page
	n := uint16(len(c.names))
	c.of[name] = n
	c.names = append(c.names, name)
	return n, nil
}

// read writes the class of each row into to, in the order of the rows.
func (c *classNumbers) read(r *rows, a arrow.Array, to plan.Classes) error {
	switch a := a.(type) {
	case *array.Boolean:
		return readClasses(c, r, a, a.Value, strconv.FormatBool, to)
	case *array.Int8:
		return readClasses(c, r, a, a.Value, intClass, to)
	case *array.Int16:
		return readClasses(c, r, a, a.Value, intClass, to)
	case *array.Int32:
		return readClasses(c, r, a, a.Value, intClass, to)
	case *array.Int64:
		return readClasses(c, r, a, a.Value, intClass, to)
	case *array.Uint8:
		return readClasses(c, r, a, a.Value, intClass, to)
	case *array.Uint16:
		return readClasses(c, r, a, a.Value, intClass, to)
	case *array.Uint32:
		return readClasses(c, r, a, a.Value, intClass, to)
	case *array.Uint64:
		return readClasses(c, r, a, a.Value, intClass, to)
	case *array.String:
		return readClasses(c, r, a, a.Value, textClass, to)
	case *array.LargeString:
		return readClasses(c, r, a, a.Value, textClass, to)
	}
	return fmt.Errorf("a defect of the server: classes of type %s", a.DataType())
}

// intClass is the name of an integer class.
func intClass[T int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64](v T) string {
	if v < 0 {
		return strconv.FormatInt(int64(v), 10)
	}
	return strconv.FormatUint(uint64(v), 10)
}

// textClass is the name of a text class.
func textClass(v string) string { return v }

// readClasses is read for one type of column.
func readClasses[T comparable](c *classNumbers, r *rows, a arrow.Array, value func(row int) T, name func(T) string,
	to plan.Classes) error {
	known := map[T]uint16{} // for this page; number takes a lock that all pages share
	for i, at := range r.offsets {
		if a.IsNull(at) {
			return &schema.FieldError{Field: "sample.balance", Got: fmt.Sprintf("null at position %d", r.position(i)),
				Want: "a class in each row; where leaves rows out, as x != nil does"}
		}
		v := value(at)
		n, ok := known[v]
		if !ok {
			var err error
			if n, err = c.number(name(v)); err != nil {
				return err
			}
			known[v] = n
		}
		to[i] = n
	}
	return nil
}

// sort numbers the classes again, in the order of their values, and returns their names.
// So the numbers do not depend on which page was read first.
func (c *classNumbers) sort(classes plan.Classes, integers bool,
	turn func(piece func() error) error) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := slices.Clone(c.names)
	slices.SortFunc(names, func(a, b string) int {
		if integers {
			return compareIntegers(a, b)
		}
		return strings.Compare(a, b)
	})
	now := make([]uint16, len(names))
	for i, name := range names {
		now[c.of[name]] = uint16(i)
	}
	const piece = 1 << 20
	err := plan.InPieces(int64(len(classes)), piece, turn, func(from, to int64) {
		some := classes[from:to]
		for i, was := range some {
			some[i] = now[was]
		}
	})
	return names, err
}

// compareIntegers compares two names of intClass by their values.
func compareIntegers(a, b string) int {
	if (a[0] == '-') != (b[0] == '-') {
		return strings.Compare(a, b) // a minus comes before digits
	}
	order := 1
	if a[0] == '-' {
		order = -1
	}
	if len(a) != len(b) {
		return order * (len(a) - len(b))
	}
	return order * strings.Compare(a, b)
}

// parts returns how often each class appears in a period, from the request's shares.
func (d *sampled) parts(names []string) ([]uint32, error) {
	shares := make([]float64, len(names))
	if d.req.Sample.Shares == nil {
		for i := range shares {
			shares[i] = 1
		}
		return plan.Parts(shares)
	}
	for i, name := range names {
		share, ok := d.req.Sample.Shares[name]
		if !ok {
			return nil, &schema.FieldError{Field: "sample.shares", Got: fmt.Sprintf("no share for class %s of column %s",
				schema.Quote(name), schema.Quote(d.req.Sample.Balance)),
				Want: "a share for each class that selected rows have, 0 for those that are to be left out"}
		}
		shares[i] = share
	}
	for _, name := range slices.Sorted(maps.Keys(d.req.Sample.Shares)) {
		if d.req.Sample.Shares[name] > 0 && !slices.Contains(names, name) {
			return nil, &schema.FieldError{Field: "sample.shares." + schema.Shown(name), Got: "a share for a class without rows",
				Want: "classes that selected rows have: " + fewOf(names)}
		}
	}
	return plan.Parts(shares)
}

// fewOf lists the first of some names.
func fewOf(names []string) string {
	const few = 20
	if len(names) <= few {
		return schema.ShownList(names)
	}
	return fmt.Sprintf("%s and %d more", schema.ShownList(names[:few]), len(names)-few)
}

// Sampling describes the effect of a job's sample.
type Sampling struct {
	// Rows is the number of samples in an epoch, Selected the number of selected samples,
	// and Never how many of these are never served.
	Rows     int64 `json:"rows"`
	Selected int64 `json:"selected"`
	Never    int64 `json:"never"`
	// Distinct is the expected number of different samples in an epoch. Most is how often
	// the most frequent one appears.
	Distinct float64 `json:"distinct"`
	Most     float64 `json:"most"`
	// Classes are the first maxSampledClasses classes of balance, in their order.
	Classes []SampledClass `json:"classes,omitempty"`
}

// SampledClass is a class of balance.
type SampledClass struct {
	Class    string  `json:"class"`
	Selected int64   `json:"selected"`
	Share    float64 `json:"share"`
	// Times is how often each of its samples appears in an epoch.
	Times float64 `json:"times"`
}

// maxSampledClasses bounds how many classes are reported one by one.
const maxSampledClasses = 1000

// Sampling describes the effect of the job's sample; nil if it has none.
func (j *Job) Sampling() *Sampling {
	req := j.resolved.Request
	if req.Sample == nil {
		return nil
	}
	s := &Sampling{Rows: j.Plan().Rows(), Selected: j.Selection().Len()}
	if j.sample == nil {
		return s // nothing is selected
	}
	// A sample has either weights or classes.
	if w := j.sample.weights; w != nil {
		s.Never = s.Selected - w.Positive()
		s.Distinct, s.Most = w.Distinct(s.Rows, req.Sample.Replaces()), w.Most(s.Rows)
		return s
	}
	b := j.sample.balance
	s.Distinct = b.Distinct(s.Rows)
	for i, name := range j.sample.classes {
		c := SampledClass{Class: name, Selected: b.Samples(i), Share: b.Share(i)}
		c.Times = c.Share * float64(s.Rows) / float64(c.Selected)
		if c.Share == 0 {
			s.Never += c.Selected
		}
		s.Most = max(s.Most, c.Times)
		if i < maxSampledClasses {
			s.Classes = append(s.Classes, c)
		}
	}
	return s
}
