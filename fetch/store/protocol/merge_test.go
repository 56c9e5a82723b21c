package protocol

import (
	"encoding/json"
	"testing"
	"time"

	"bowstring/fetch/store"
)

// Given two damaged copies of a partition, the later one may have the older row of a run.
// A settled step stays settled.
func TestMergeKeepsSettledSteps(t *testing.T) {
	row := func(created int64, steered int, settled int64) map[string][]byte {
		run := store.Run{Dataset: "d", Name: "r", Steered: make([]store.Steer, steered), Settled: settled,
			Created: time.Unix(created, 0)}
		text, err := json.Marshal(run)
		if err != nil {
			t.Fatal(err)
		}
		return map[string][]byte{rowRun + "r": text}
	}
	for name, c := range map[string]struct {
		copies []map[string][]byte
		want   int
	}{
		"a later copy went further":        {[]map[string][]byte{row(1, 0, 16), row(1, 0, 64)}, 1},
		"an earlier copy went further":     {[]map[string][]byte{row(1, 0, 64), row(1, 0, 16)}, 0},
		"an earlier copy was steered":      {[]map[string][]byte{row(1, 1, 16), row(1, 0, 16)}, 0},
		"a later copy is of a run anew":    {[]map[string][]byte{row(1, 2, 64), row(2, 0, 16)}, 1},
		"an earlier copy is of a run anew": {[]map[string][]byte{row(2, 0, 16), row(1, 2, 64)}, 0},
		"one copy has it":                  {[]map[string][]byte{row(1, 0, 16), {}}, 0},
		"one copy is damaged":              {[]map[string][]byte{row(1, 0, 16), {rowRun + "r": []byte("{")}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got, want := Merge("d", c.copies...)[rowRun+"r"], c.copies[c.want][rowRun+"r"]
			if string(got) != string(want) {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}
