package where

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/float16"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/schema"
)

// oracle is a number as a big.Rat; inf is the sign of an infinity. nil is null.
type oracle struct {
	rat *big.Rat
	inf int
	nan bool
}

func oracleOf(f float64) *oracle {
	switch {
	case f != f:
		return &oracle{nan: true}
	case math.IsInf(f, 0):
		return &oracle{inf: int(math.Copysign(1, f))}
	}
	return &oracle{rat: new(big.Rat).SetFloat64(f)}
}

// test is a comparison by the values of the numbers.
func (a *oracle) test(operator string, b *oracle) bool {
	if a == nil || b == nil {
		return false
	}
	if a.nan || b.nan {
		return operator == "!="
	}
	var c int
	if a.inf != 0 || b.inf != 0 {
		c = a.inf - b.inf
	} else {
		c = a.rat.Cmp(b.rat)
	}
	switch operator {
	case "<":
		return c < 0
	case "<=":
		return c <= 0
	case ">":
		return c > 0
	case ">=":
		return c >= 0
	case "==":
		return c == 0
	}
	return c != 0
}

// numeric are the types of columns of numbers, by their names.
var numeric = []struct {
	name string
	of   arrow.DataType
}{
	{"i8", arrow.PrimitiveTypes.Int8}, {"i32", arrow.PrimitiveTypes.Int32}, {"i64", arrow.PrimitiveTypes.Int64},
	{"u8", arrow.PrimitiveTypes.Uint8}, {"u32", arrow.PrimitiveTypes.Uint32}, {"u64", arrow.PrimitiveTypes.Uint64},
	{"f16", arrow.FixedWidthTypes.Float16}, {"f32", arrow.PrimitiveTypes.Float32},
	{"f64", arrow.PrimitiveTypes.Float64},
}

// edges generates numbers near rounding and limits.
type edges struct{ *rand.Rand }

// whole is any integer up to 2^66 from zero.
func (r edges) whole() *big.Int {
	n := big.NewInt(1)
	n.Lsh(n, []uint{0, 1, 7, 8, 15, 24, 31, 32, 52, 53, 54, 62, 63, 64, 65}[r.IntN(15)])
	n.Add(n, big.NewInt(int64(r.IntN(5)-2)))
	if r.IntN(4) == 0 {
		n.SetUint64(r.Uint64() >> r.IntN(64))
	}
	if r.IntN(3) == 0 {
		n.Neg(n)
	}
	return n
}

func (r edges) float() float64 {
	f, _ := new(big.Float).SetInt(r.whole()).Float64()
	switch r.IntN(8) {
	case 0:
		return math.Nextafter(f, math.Inf(r.IntN(2)*2-1))
	case 1:
		return f + 0.5
	case 2:
		return []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e300, -1e-300, math.Copysign(0, -1)}[r.IntN(6)]
	}
	return f
}

// fill appends a value to a column, and returns what it is.
func (r edges) fill(b array.Builder) *oracle {
	if r.IntN(8) == 0 {
		b.AppendNull()
		return nil
	}
	n := r.whole()
	signed := func(bits uint) int64 {
		low := big.NewInt(-1 << (bits - 1))
		n.Sub(n, low).And(n, new(big.Int).SetUint64(math.MaxUint64>>(64-bits))).Add(n, low)
		return n.Int64()
	}
	unsigned := func(bits uint) uint64 {
		return n.And(n, new(big.Int).SetUint64(math.MaxUint64>>(64-bits))).Uint64()
	}
	switch b := b.(type) {
	case *array.Int8Builder:
		b.Append(int8(signed(8)))
	case *array.Int32Builder:
		b.Append(int32(signed(32)))
	case *array.Int64Builder:
		b.Append(signed(64))
	case *array.Uint8Builder:
		b.Append(uint8(unsigned(8)))
	case *array.Uint32Builder:
		b.Append(uint32(unsigned(32)))
	case *array.Uint64Builder:
		b.Append(unsigned(64))
	case *array.Float16Builder:
		f := float16.New(float32(r.float()))
		b.Append(f)
		return oracleOf(float64(f.Float32()))
	case *array.Float32Builder:
		f := float32(r.float())
		b.Append(f)
		return oracleOf(float64(f))
	case *array.Float64Builder:
		f := r.float()
		b.Append(f)
		return oracleOf(f)
	}
	return &oracle{rat: new(big.Rat).SetInt(n)}
}

// operand is a literal or a column, and its value in a row.
func (r edges) operand(values map[string][]*oracle) (text string, at func(row int) *oracle) {
	switch r.IntN(4) {
	case 0:
		n := r.whole()
		return n.String(), func(int) *oracle { return &oracle{rat: new(big.Rat).SetInt(n)} }
	case 1:
		f := r.float()
		for f != f || math.IsInf(f, 0) {
			f = r.float()
		}
		text = fmt.Sprintf("%g", f)
		if !strings.ContainsAny(text, ".e") {
			text += ".0"
		}
		return text, func(int) *oracle { return oracleOf(f) }
	}
	name := numeric[r.IntN(len(numeric))].name
	return name, func(row int) *oracle { return values[name][row] }
}

// Numbers of all types are compared by value, at the limits of their types and where
// floats are sparse, by reading rows and by statistics.
func TestComparisonsAreExact(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := edges{rand.New(rand.NewPCG(seed, 0))}
	var fields []arrow.Field
	for _, c := range numeric {
		fields = append(fields, arrow.Field{Name: c.name, Type: c.of, Nullable: true})
	}
	s, err := schema.NewSchema(fields, []arrow.Field{schema.BlobField("image", schema.MediaImage, true)})
	if err != nil {
		t.Fatal(err)
	}
	meta := arrow.NewSchema(schema.MetaFields(s), nil)
	matched, of := 0, 0
	for range 25 {
		values := map[string][]*oracle{}
		var recs []arrow.Record
		for range 1 + r.IntN(5) {
			b := array.NewRecordBuilder(memory.DefaultAllocator, meta)
			for range 1 + r.IntN(6) {
				for i, c := range numeric {
					values[c.name] = append(values[c.name], r.fill(b.Field(i)))
				}
			}
			rec := b.NewRecord()
			recs = append(recs, rec)
			b.Release()
		}
		p := pagedOf(t, r.Rand, s, recs...)
		for _, rec := range recs {
			rec.Release()
		}
		for range 120 {
			left, a := r.operand(values)
			right, b := r.operand(values)
			operator := []string{"==", "!=", "<", "<=", ">", ">=", "in"}[r.IntN(7)]
			text, want := fmt.Sprintf("%s %s %s", left, operator, right), func(row int) bool {
				return a(row).test(operator, b(row))
			}
			if operator == "in" {
				third, c := r.operand(values)
				text = fmt.Sprintf("%s in [%s, %s]", left, right, third)
				_, isNull := values[right]
				_, alsoNull := values[third]
				want = func(row int) bool {
					if isNull && b(row) == nil || alsoNull && c(row) == nil {
						return false // the test needs them
					}
					return a(row).test("==", b(row)) || a(row).test("==", c(row))
				}
			}
			if r.IntN(4) == 0 {
				inner := want
				text, want = "not ("+text+")", func(row int) bool { return !inner(row) }
			}
			e, err := Compile(t.Context(), text, s, now)
			if err != nil {
				t.Fatal(err)
			}
			for _, p.blind = range []bool{true, false} {
				got, err := e.Eval(t.Context(), p, now)
				if err != nil {
					t.Fatal(err)
				}
				for row := range int(p.form.Rows()) {
					of++
					if got.Has(int64(row)) {
						matched++
					}
					if got.Has(int64(row)) != want(row) {
						t.Fatalf("%s: row %d: %v; %s is %+v, %s is %+v (without statistics: %t)", text, row,
							!want(row), left, a(row), right, b(row), p.blind)
					}
				}
			}
		}
	}
	if matched < of/10 || matched > of*9/10 {
		t.Errorf("%d of %d rows match: that tests little", matched, of)
	}
}

// Arithmetic on integers is exact, or an error of the row.
func TestArithmeticIsExact(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := edges{rand.New(rand.NewPCG(seed, 0))}
	var fields []arrow.Field
	for _, c := range numeric[:6] {
		fields = append(fields, arrow.Field{Name: c.name, Type: c.of})
	}
	fields = append(fields, arrow.Field{Name: "list", Type: arrow.ListOf(arrow.PrimitiveTypes.Uint64)})
	s, err := schema.NewSchema(fields, []arrow.Field{schema.BlobField("image", schema.MediaImage, true)})
	if err != nil {
		t.Fatal(err)
	}
	failed, tried := 0, 0
	for range 300 {
		values := map[string]*big.Int{}
		b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(schema.MetaFields(s), nil))
		for i, c := range numeric[:6] {
			var v *oracle
			for v == nil {
				one := array.NewBuilder(memory.DefaultAllocator, c.of)
				if v = r.fill(one); v == nil {
					continue
				}
				if err := b.Field(i).AppendValueFromString(one.NewArray().ValueStr(0)); err != nil {
					t.Fatal(err)
				}
			}
			values[c.name] = v.rat.Num()
		}
		list := b.Field(6).(*array.ListBuilder)
		list.Append(true)
		total, highest := new(big.Int), values["i8"]
		for range r.IntN(4) {
			items := list.ValueBuilder().(*array.Uint64Builder)
			if v := r.fill(items); v != nil {
				total.Add(total, v.rat.Num())
				if highest.Cmp(v.rat.Num()) < 0 {
					highest = v.rat.Num()
				}
			}
		}
		m := manifestOf(t, s, b.NewRecord())
		b.Release()
		left, right := numeric[r.IntN(6)].name, numeric[r.IntN(6)].name
		a, c, out := values[left], values[right], new(big.Int)
		var text string
		unsigned := strings.Contains(left+right, "u64")
		switch r.IntN(8) {
		case 0:
			text = left + " + " + right
			out.Add(a, c)
		case 1:
			text = left + " - " + right
			out.Sub(a, c)
		case 2:
			text = left + " * " + right
			out.Mul(a, c)
		case 3:
			if c.Sign() == 0 {
				continue
			}
			text = left + " % " + right
			out.Rem(a, c)
		case 4:
			text, unsigned = "-"+left, left == "u64"
			out.Neg(a)
		case 5:
			text, unsigned = fmt.Sprintf("abs(%s)", left), left == "u64"
			out.Abs(a)
		case 6:
			text, unsigned, out = "sum(list)", true, total
		default:
			text, unsigned = fmt.Sprintf("max(%s, i8, %s, list)", left, right), true
			out = slices.MaxFunc([]*big.Int{a, c, highest}, (*big.Int).Cmp)
		}
		most := uint64(math.MaxInt64)
		if unsigned {
			most = math.MaxUint64
		}
		fits := out.Cmp(new(big.Int).SetUint64(most)) <= 0 && out.Cmp(big.NewInt(math.MinInt64)) >= 0
		for literal, want := range map[*big.Int]bool{out: true, new(big.Int).Add(out, big.NewInt(1)): false} {
			e, err := Compile(t.Context(), fmt.Sprintf("%s == %s", text, literal), s, now)
			if err != nil {
				t.Fatal(err)
			}
			tried++
			got, err := e.Eval(t.Context(), m, now)
			var at *Error
			switch {
			case !fits && (!errors.As(err, &at) || !strings.Contains(err.Error(), "beyond what an integer holds")):
				t.Fatalf("%s == %s of %v: %v, want an error", text, literal, values, err)
			case !fits:
				failed++
			case err != nil:
				t.Fatalf("%s == %s of %v: %v", text, literal, values, err)
			case got.Has(0) != want:
				t.Fatalf("%s == %s of %v: %t", text, literal, values, !want)
			}
		}
	}
	if failed == 0 || failed > tried/2 {
		t.Errorf("%d of %d fail: that tests little", failed, tried)
	}
}
