package cql

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/schema"
)

// describe looks at the tables' columns and decides what the dataset's are.
func (a *attachment) describe(ctx context.Context) error {
	var err error
	if a.data, err = a.open(ctx, a.opts.Data, true); err != nil {
		return err
	}
	if a.opts.Metadata != "" {
		if a.meta, err = a.open(ctx, a.opts.Metadata, false); err != nil {
			return err
		}
		a.meta.columns = slices.DeleteFunc(a.meta.columns, func(c column) bool {
			return slices.ContainsFunc(a.data.columns, func(d column) bool { return d.name == c.name })
		})
	}
	var meta, blobs []arrow.Field
	var known []string
	a.splitAt = -1
	for _, src := range []*source{&a.data, &a.meta} {
		src.columns = slices.DeleteFunc(src.columns, func(c column) bool {
			known = append(known, c.name)
			return c.name != a.opts.SplitColumn && a.opts.Columns != nil && !slices.Contains(a.opts.Columns, c.name)
		})
		for _, c := range src.columns {
			if c.table != nil {
				blobs = append(blobs, schema.BlobField(c.name, a.opts.Media, true))
				continue
			}
			if c.name == a.opts.SplitColumn {
				if c.kind.arrow.ID() != arrow.STRING {
					return bad("split column", c.name, "a column of text")
				}
				a.splitAt = len(meta)
			}
			meta = append(meta, arrow.Field{Name: c.name, Type: c.kind.arrow, Nullable: true})
		}
	}
	for _, name := range append(slices.Clone(a.opts.Columns), a.opts.SplitColumn) {
		if name != "" && !slices.Contains(known, name) {
			return bad("columns", name, "some of "+schema.ShownList(known))
		}
	}
	if len(blobs) == 0 {
		return bad("columns", "no blob column", "at least one of table "+a.opts.Data)
	}
	a.metaSchema = arrow.NewSchema(meta, nil)
	// A column that only says which split is not repeated under a name that is taken.
	if a.splitAt >= 0 && (a.opts.SplitColumn == schema.SplitColumn || a.opts.Columns != nil &&
		!slices.Contains(a.opts.Columns, a.opts.SplitColumn)) {
		a.splitOnly = true
		meta = slices.Delete(slices.Clone(meta), a.splitAt, a.splitAt+1)
	}
	a.schema, err = schema.NewSchema(meta, blobs)
	return err
}

// open reads a table's columns from the server's catalog.
func (a *attachment) open(ctx context.Context, name string, withBlobs bool) (source, error) {
	keyspace, table, _ := strings.Cut(name, ".")
	src := source{keyspace: keyspace, table: table}
	iter := a.s.db.Query("SELECT column_name, kind, type FROM system_schema.columns WHERE keyspace_name = ? AND "+
		"table_name = ?", keyspace, table).
		WithContext(ctx).Iter()
	host := iter.Host()
	var col, kind, cqlType string
	var err error
	for iter.Scan(&col, &kind, &cqlType) {
		switch {
		case kind == "partition_key" && src.id == "" && cqlType == "uuid":
			src.id = col
		case kind == "partition_key" || kind == "clustering":
			err = fmt.Errorf("%w: table %s: column %s (%s %s): want a primary key of one uuid", schema.ErrInvalid, name,
				col, kind, cqlType)
		case kind != "regular":
			// Static columns need clustering columns, which there are none of.
		case cqlType == "blob" && withBlobs:
			src.columns = append(src.columns, column{name: col})
		case columnTypes[cqlType] != nil:
			src.columns = append(src.columns, column{name: col, kind: columnTypes[cqlType]})
		case a.opts.Columns == nil || slices.Contains(a.opts.Columns, col):
			err = fmt.Errorf("%w: table %s: column %s is of type %s, which has no place in a dataset: name the "+
				"columns to take without it", schema.ErrInvalid, name, col, cqlType)
		}
	}
	if closed := iter.Close(); closed != nil {
		return src, a.s.fault(ctx, closed, host, "system_schema.columns", "look at table "+name)
	}
	switch {
	case err != nil:
		return src, err
	case src.id == "":
		return src, fmt.Errorf("%w: the cluster has no table %s", schema.ErrNotFound, name)
	}
	for i := range src.columns {
		if c := &src.columns[i]; c.kind == nil {
			c.table = newForeignTable(keyspace, table, src.id, c.name)
		}
	}
	slices.SortFunc(src.columns, func(x, y column) int { return strings.Compare(x.name, y.name) })
	src.session, err = a.s.sessionFor(ctx, keyspace)
	return src, err
}

// register lets every process find the tables that keys will point into.
func (a *attachment) register(ctx context.Context) error {
	var list []*foreignTable
	for _, c := range a.data.columns {
		if c.table != nil {
			list = append(list, c.table)
		}
	}
	return a.s.register(ctx, list)
}

// register writes down which tables are attached, and takes note of all that are.
func (s *Store) register(ctx context.Context, list []*foreignTable) error {
	for _, t := range list {
		q := s.db.Query(insertAttached, t.prefix[:], t.keyspace, t.table, t.id, t.data).Consistency(s.catalogLevel())
		if err := s.exec(ctx, q, tableAttached, "register a table"); err != nil {
			return err
		}
	}
	return s.loadAttached(ctx)
}
