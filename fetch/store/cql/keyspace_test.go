package cql

import (
	"errors"
	"maps"
	"testing"

	"bowstring/schema"
)

func TestParseReplication(t *testing.T) {
	for text, want := range map[string]Replication{
		"3": {"": 3}, "dc1=3": {"dc1": 3}, "dc1=3,dc2=2": {"dc1": 3, "dc2": 2}, "dc1=3, dc2=2": {"dc1": 3, "dc2": 2},
		"": nil, "0": nil, "-1": nil, "three": nil, "dc1": nil, "dc1=": nil, "=3": nil, "dc1=0": nil, "3,2": nil,
		"3,dc1=3":     nil,
		"dc1=3,dc1=3": nil, "100": nil, "dc1=3,": nil,
	} {
		got, err := ParseReplication(text)
		if want == nil {
			if !errors.Is(err, schema.ErrInvalid) {
				t.Errorf("%q: %v, %v", text, got, err)
			}
			continue
		}
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("%q: %v, want %v: %v", text, got, want, err)
		}
		if again, err := ParseReplication(got.String()); err != nil || !maps.Equal(again, want) {
			t.Errorf("%q is written %q, and read back as %v: %v", text, got, again, err)
		}
	}
}
