package layout

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"bowstring/schema"
)

func TestRecord(t *testing.T) {
	nodes := []Node{{ID: "b", Address: "grpc://b:1", Zone: "z", Weight: 2, Capacity: 10}, {ID: "a", Weight: 1}}
	r, err := NewRecord(100, nodes, nil)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"layout":1,"bytes":100,"nodes":[{"id":"a","weight":1,"capacity":0},{"id":"b","address":"grpc://b:1","zone":"z","weight":2,"capacity":10}]}`
	if got := string(r.Marshal()); got != want {
		t.Errorf("encoded as %s, want %s", got, want)
	}
	if back, err := Parse([]byte(want)); err != nil || !reflect.DeepEqual(back, r) {
		t.Errorf("read back as %+v, %v", back, err)
	}
	if nodes[0].ID != "b" {
		t.Error("the caller's nodes were changed")
	}
	if r, err = NewRecord(100, nodes, []string{"b", "b", "a", "b"}); err != nil || r.Nodes[1].Weight != 3 ||
		!reflect.DeepEqual(r.Ranks, []int64{1, 1, 0, 1}) {
		t.Errorf("with ranks: %+v, %v", r, err)
	}
}

func TestBadRecords(t *testing.T) {
	valid := `{"layout":1,"bytes":100,"nodes":[{"id":"a","weight":1,"capacity":0},{"id":"b","weight":2,"capacity":10}]}`
	for _, test := range []struct{ old, new, want string }{
		{"", " ", "layout: got another encoding"},
		{`"layout":1`, `"layout":2`, "layout: got 2, want 1"},
		{`"layout":1,`, ``, "layout: got 0"},
		{`100`, `-1`, "bytes: got -1"},
		{`"b"`, `"a"`, "nodes[1].id"},
		{`"b"`, `"A"`, "nodes[1].id"},
		{`"b"`, `"b!"`, "nodes[1].id"},
		{`"weight":2`, `"weight":65537`, "nodes[1].weight"},
		{`"weight":2`, `"address":"http://x","weight":2`, "nodes[1].address"},
		{`"weight":2`, `"address":"grpc://x:1","zone":"a b","weight":2`, "nodes[1].zone"},
		{`10}]`, `10}],"ranks":[2]`, "ranks[0]: got 2, want 0 to 1"},
		{`10}]`, `10}],"x":[2]`, "x: got an unknown field"},
	} {
		text := strings.Replace(valid, test.old, test.new, 1)
		if _, err := Parse([]byte(text)); !errors.Is(err, schema.ErrInvalid) ||
			!strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %s", text, err, test.want)
		}
	}
	if _, err := NewRecord(0, nil, nil); !errors.Is(err, schema.ErrInvalid) {
		t.Errorf("no nodes: %v", err)
	}
	_, err := NewRecord(0, equals(20, 1), []string{"node-0001", "x"})
	if want := `ranks[1]: got "x", want the id of a node of the cluster: node-0000, node-0001`; err == nil ||
		!strings.HasPrefix(err.Error(), want) {
		t.Errorf("a rank beside no node: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"layout":1,"bytes":100,"nodes":[{"id":"a","weight":1,"capacity":0},{"id":"b","address":"grpc://b:1","zone":"z","weight":2,"capacity":10}]}`,
		`{"layout":1,"bytes":9223372036854775807,"nodes":[{"id":"a","weight":65536,"capacity":9223372036854775807}],"ranks":[0,0]}`,
		`{"layout":1,"bytes":0,"nodes":[{"id":"a","weight":0,"capacity":1},{"id":"b","weight":0,"capacity":0}],"ranks":[0,1]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Parse(b)
		if err != nil {
			if !errors.Is(err, schema.ErrInvalid) {
				t.Fatalf("%q: %v", b, err)
			}
			return
		}
		if string(r.Marshal()) != string(b) {
			t.Fatalf("%q has another canonical encoding", b)
		}
		if len(r.Nodes) > 64 {
			return // as many as make it slow are no other case
		}
		l, err := New(r)
		if err != nil {
			t.Fatal(err)
		}
		first, second, unowned := counts(l)
		sum := unowned
		for i := range first {
			sum += first[i]
			if most := slotsIn(r.Nodes[i].Capacity, r.Bytes); first[i] != l.Owned(i) || first[i]+second[i] > most {
				t.Fatalf("%q: node %d owns %d + %d slots, said %d, and has room for %d", b, i, first[i], second[i],
					l.Owned(i), most)
			}
		}
		if sum != Slots {
			t.Fatalf("%q: %d slots", b, sum)
		}
		for _, world := range []int{1, 2, 7, len(r.Ranks)} {
			for rank := range world {
				if n := l.NodeOf(rank, world); n < 0 || n >= l.Nodes() {
					t.Fatalf("%q: rank %d of %d at node %d", b, rank, world, n)
				}
			}
		}
	})
}
