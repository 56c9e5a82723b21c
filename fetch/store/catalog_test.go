package store_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/fetch/store"
	"bowstring/schema"
)

func TestCatalogRules(t *testing.T) {
	few := []store.Dataset{{Name: "cats", Snapshots: []int64{1, 4}}, {Name: "dogs", Snapshots: []int64{2}}}
	var many []store.Dataset
	for i := range 25 {
		many = append(many, store.Dataset{Name: fmt.Sprintf("d%02d", i), Snapshots: []int64{1}})
	}
	s := arrow.NewSchema(nil, nil)
	for _, tt := range []struct {
		err  error
		kind error
		want string
	}{
		{store.NoSnapshot(few, "cats", 3), schema.ErrNotFound,
			`not found: dataset "cats" has no snapshot 3; it has 1 4`},
		{store.NoSnapshot(few, "cast", 0), schema.ErrNotFound,
			`not found: there is no dataset "cast" (did you mean "cats"?); there are cats, dogs`},
		{store.NoSnapshot(nil, "cats", 1), schema.ErrNotFound,
			`not found: there is no dataset "cats"; the store is empty`},
		{store.NoSnapshot(many, "zebras", 0), schema.ErrNotFound,
			`not found: there is no dataset "zebras"; there are d00, d01, d02, d03, d04, ` +
				`d05, d06, d07, d08, d09, d10, d11, d12, d13, d14, d15, d16, d17, d18, d19 and 5 more`},
		{store.CheckCommit("cats", &schema.Snapshot{Dataset: "dogs", Schema: s}), schema.ErrInvalid,
			`invalid: a snapshot of "dogs" committed through an ingest into "cats"`},
		{store.CheckCommit("cats", &schema.Snapshot{}), schema.ErrInvalid, `invalid: a snapshot without a schema`},
		{store.CheckCommit("cats", &schema.Snapshot{Dataset: "cats", Schema: s}), nil, ""},
		{store.CheckCommit("cats", &schema.Snapshot{Schema: s}), nil, ""},
		{store.CheckParent("cats", 3, 4), schema.ErrConflict,
			`conflict: the newest snapshot of "cats" is 4, not 3: another import was committed, or one dropped, meanwhile`},
		{store.CheckParent("cats", 4, 4), nil, ""},
	} {
		if tt.want == "" {
			if tt.err != nil {
				t.Error(tt.err)
			}
		} else if !errors.Is(tt.err, tt.kind) || tt.err.Error() != tt.want {
			t.Errorf("got %v, want %s", tt.err, tt.want)
		}
	}
}
