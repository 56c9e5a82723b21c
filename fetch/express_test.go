package fetch_test

import (
	"fmt"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"

	"bowstring/fetch"
	"bowstring/schema"
)

// Columns of expressions belong to their samples: whatever is beside them, in any order, resumed, or asked for by
// position.
func TestExpressionsMakeColumns(t *testing.T) {
	st := newStore(t)
	const n = 300
	made(t, st, n, func(i int) []byte {
		if i%7 == 3 {
			return nil
		}
		return content(i)
	})
	e := newEngine(t, st, withOperators(fetch.Options{}))
	wanted := schema.Operators{"twice": {Expression: "position * 2"}, "size": {Expression: "image.size"},
		"text": {Expression: `"p" + string(position)`}, "large": {Expression: "image.size > 20"}}
	both := schema.Operators{"image": {Steps: steps("Decode", "Crop=100")}}
	for name, p := range wanted {
		both[name] = p
	}
	shuffle := &schema.Shuffle{Seed: 3, Epoch: 2}
	names := []string{"twice", "image", "text", "large", "size"}
	for name, req := range map[string]schema.Request{
		"all":        {Operators: wanted},
		"metadata":   {Operators: wanted, Columns: []string{"size", "large", "twice", "text"}, Shuffle: shuffle, Batch: 17},
		"with blobs": {Operators: wanted, Columns: names, Shuffle: shuffle, Batch: 11, World: &schema.World{Size: 2}},
		"with steps": {Operators: both, Columns: names, Shuffle: shuffle, Batch: 32, Order: schema.OrderFree},
		"selected":   {Operators: wanted, Columns: names, Where: "position % 3 == 1 and image.size > 0", Batch: 32},
	} {
		t.Run(name, func(t *testing.T) {
			req.Dataset = "d"
			j := open(t, e, req)
			seen := map[int64]bool{}
			check := func(b *fetch.Batch) {
				each := func(name string, wrong func(a arrow.Array, row int, pos int64) bool) {
					column(t, b, name, func(a arrow.Array) {
						for row, pos := range b.Positions {
							if wrong(a, row, pos) {
								t.Fatalf("%s of position %d is %s", name, pos, a.ValueStr(row))
							}
						}
					})
				}
				null := func(pos int64) bool { return pos%7 == 3 }
				size := func(pos int64) int64 { return int64(len(content(int(pos)))) }
				each("twice", func(a arrow.Array, row int, pos int64) bool {
					return a.IsNull(row) || a.(*array.Int64).Value(row) != 2*pos
				})
				each("text", func(a arrow.Array, row int, pos int64) bool {
					return a.IsNull(row) || a.(*array.String).Value(row) != fmt.Sprint("p", pos)
				})
				each("size", func(a arrow.Array, row int, pos int64) bool {
					return a.IsNull(row) != null(pos) || !null(pos) && a.(*array.Int64).Value(row) != size(pos)
				})
				each("large", func(a arrow.Array, row int, pos int64) bool {
					return a.(*array.Boolean).Value(row) != (!null(pos) && size(pos) > 20)
				})
			}
			for rank := range int(req.WorldSize()) {
				s := start(t, e, j, ticket(j.Request(), rank))
				batch := 0
				for b := range batches(t, s) {
					check(b)
					for _, pos := range b.Positions {
						if seen[pos] {
							t.Errorf("position %d came twice", pos)
						}
						seen[pos] = true
					}
					if batch++; batch != 1 {
						continue
					}
					// A parsed ticket means the same.
					again := must(schema.ParseTicket(b.Resume.Marshal()))
					other := open(t, e, again.Request)
					if other.ID() != j.ID() {
						t.Errorf("the ticket's plan is %s, the job's %s", other.ID(), j.ID())
					}
					rest := start(t, e, other, again)
					for b := range batches(t, rest) {
						check(b)
					}
					rest.Close()
				}
				s.Close()
			}
			if int64(len(seen)) != j.Plan().Rows() {
				t.Errorf("%d rows of %d", len(seen), j.Plan().Rows())
			}
			took := must(e.Take(t.Context(), j, []int64{5, 3, 5, 1}))
			for b := range batches(t, took) {
				check(b)
			}
			took.Close()
		})
	}
}
