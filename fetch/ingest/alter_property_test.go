package ingest

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// model is a dataset as plain values.
type model struct {
	columns []string // of metadata, in order
	rows    []modelRow
}

type modelRow struct {
	id    schema.ID
	split string
	cells map[string]any
	image []byte
}

// lines returns the rows of the model in the form of table.
func (m *model) lines() []string {
	var lines []string
	for _, r := range m.rows {
		line := fmt.Sprintf("%s %s", schema.FormatID(r.id), r.split)
		for _, c := range m.columns {
			line += fmt.Sprintf(" %s=%v", c, orNull(r.cells[c]))
		}
		lines = append(lines, fmt.Sprintf("%s image=%x", line, r.image))
	}
	return lines
}

func orNull(v any) any {
	if v == nil {
		return "null"
	}
	return v
}

// TestAlterProperty makes random alterations of a dataset and of plain values, with collections between, and compares.
func TestAlterProperty(t *testing.T) {
	for range 4 {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		alterRandomly(t, rand.New(rand.NewPCG(seed, 0)))
	}
}

func alterRandomly(t *testing.T, r *rand.Rand) {
	st := openStore(t)
	mustWrite(t, st, Create, part{"a", 0, 1 + r.IntN(2500)}, part{"b", 5000, 5000 + r.IntN(40)})
	snap, _ := mustAlter(t, st, AlterOptions{Drop: []string{"mask", "label"}}, nil)
	m := &model{columns: []string{"name"}}
	for _, line := range table(t, st, snap) {
		var id, split, row, number string
		var content []byte
		if _, err := fmt.Sscanf(line, "%s %s name=%s %s image=%x", &id, &split, &row, &number, &content); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		parsed, err := schema.ParseID(id)
		if err != nil {
			t.Fatal(err)
		}
		m.rows = append(m.rows, modelRow{parsed, split, map[string]any{"name": row + " " + number}, content})
	}
	fresh := 0
	for step := range 25 {
		var what string
		snap, what = m.alter(t, st, r, &fresh)
		if got, want := table(t, st, snap), m.lines(); !slices.Equal(got, want) {
			i := 0
			for i < min(len(got), len(want)) && got[i] == want[i] {
				i++
			}
			t.Fatalf("step %d, %s: %d rows, want %d; first at %d: %q, want %q", step, what, len(got), len(want), i,
				got[i:min(i+1, len(got))], want[i:min(i+1, len(want))])
		}
		if r.IntN(5) == 0 {
			if err := st.Drop(t.Context(), "d", snap.Parent); err != nil && !errors.Is(err, schema.ErrNotFound) {
				t.Fatal(err)
			}
			if _, err := st.GC(t.Context(), store.GCOptions{}, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// alter makes one random alteration of both.
func (m *model) alter(t *testing.T, st store.Store, r *rand.Rand, fresh *int) (*schema.Snapshot, string) {
	switch r.IntN(6) {
	case 0: // delete by key
		var ids []schema.ID
		for _, at := range r.Perm(len(m.rows))[:min(len(m.rows)-1, r.IntN(20))] {
			ids = append(ids, m.rows[at].id)
		}
		snap, done := mustAlter(t, st, AlterOptions{Delete: true}, &frame{ids: ids})
		m.rows = slices.DeleteFunc(m.rows, func(row modelRow) bool { return slices.Contains(ids, row.id) })
		if done.Deleted != int64(len(ids)) {
			t.Errorf("%+v, want %d deleted", done, len(ids))
		}
		return snap, "delete"
	case 1: // delete by an expression
		at := r.IntN(len(m.rows))
		end := at + r.IntN(1+len(m.rows)/4)
		if len(m.rows)-(end-at) < 1 {
			end = at
		}
		snap, _ := mustAlter(t, st, AlterOptions{DeleteWhere: fmt.Sprintf("position >= %d and position < %d", at, end)}, nil)
		m.rows = slices.Delete(m.rows, at, min(end, len(m.rows)))
		return snap, "delete where"
	case 2: // drop or rename a column
		if len(m.columns) == 1 {
			break
		}
		at := 1 + r.IntN(len(m.columns)-1)
		name := m.columns[at]
		if r.IntN(2) == 0 {
			snap, _ := mustAlter(t, st, AlterOptions{Drop: []string{name}}, nil)
			m.columns = slices.Delete(m.columns, at, at+1)
			for _, row := range m.rows {
				delete(row.cells, name)
			}
			return snap, "drop " + name
		}
		*fresh++
		to := fmt.Sprintf("renamed%d", *fresh)
		snap, _ := mustAlter(t, st, AlterOptions{Rename: map[string]string{name: to}}, nil)
		m.columns[at] = to
		for _, row := range m.rows {
			row.cells[to] = row.cells[name]
			delete(row.cells, name)
		}
		return snap, "rename " + name
	}
	return m.merge(t, st, r, fresh)
}

// merge merges random rows, some of which may be new, into an existing column or a new one.
func (m *model) merge(t *testing.T, st store.Store, r *rand.Rand, fresh *int) (*schema.Snapshot, string) {
	column := m.columns[r.IntN(len(m.columns))]
	if column == "name" || r.IntN(3) == 0 {
		*fresh++
		column = fmt.Sprintf("column%d", *fresh)
		m.columns = append(m.columns, column)
	}
	byName := r.IntN(2) == 0
	f := &frame{split: []string{"", "a", "c"}[r.IntN(3)]}
	var names, values, images []any
	rows := r.Perm(len(m.rows))[:r.IntN(1+len(m.rows))]
	for _, at := range rows {
		row := &m.rows[at]
		f.ids, names = append(f.ids, row.id), append(names, row.cells["name"])
		v := randomCell(r)
		row.cells[column] = v
		values = append(values, v)
		if f.split != "" {
			row.split = f.split
		}
		var image []byte
		if r.IntN(10) == 0 {
			image = fmt.Appendf(nil, "image %d", r.IntN(1000))
			row.image = image
		}
		images = append(images, image)
	}
	for range r.IntN(3) * r.IntN(50) {
		*fresh++
		name := fmt.Sprintf("new %d", *fresh)
		row := modelRow{schema.SampleID("d", name), "z", map[string]any{"name": name, column: randomCell(r)}, []byte(name)}
		if f.split != "" {
			row.split = f.split
		}
		f.ids, names = append(f.ids, row.id), append(names, name)
		values, images = append(values, row.cells[column]), append(images, row.image)
		m.rows = append(m.rows, row)
	}
	if len(values) == 0 { // only the new column
		f.ids = idsOf(1_000_000)
		_, _, err := alter(t, st, AlterOptions{}, f.column(column, "x"))
		if err == nil || !strings.Contains(err.Error(), "1 rows have keys") {
			t.Fatal(err)
		}
		f.names, f.values, f.ids = nil, nil, nil
		f.column("name").column(column)
		snap, _ := mustAlter(t, st, AlterOptions{On: "name"}, f)
		return snap, "merge of nothing"
	}
	opts := AlterOptions{Missing: MissingInsert, Split: "z"}
	if byName {
		opts.On, f.ids = "name", nil
	}
	f.column("name", names...).column(column, values...)
	if slices.ContainsFunc(images, func(v any) bool { return len(v.([]byte)) > 0 }) {
		f.column("image", images...)
	}
	snap, _ := mustAlter(t, st, opts, f)
	return snap, fmt.Sprintf("merge of %d rows into %s, %v", len(values), column, maps.Clone(m.rows[0].cells))
}

func randomCell(r *rand.Rand) any {
	if r.IntN(5) == 0 {
		return nil
	}
	return fmt.Sprintf("v%d", r.IntN(10))
}
