package cql

import (
	"errors"
	"fmt"
	"testing"
)

// tooManyKeys is what Cassandra says of more partitions than its limit.
const tooManyKeys = "Guardrail partition_keys_in_select violated: Aborting query with partition keys in IN clause on " +
	"table blob_parts, number of partition keys 16 exceeds fail threshold of 8."

// said is a server's error.
type said struct {
	code int
	text string
}

func (e said) Error() string { return e.text }

func (e said) Code() int { return e.code }

// TestRefuses: statements get fewer keys if a server refuses that many, and for no other
// reason.
func TestRefuses(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{said{codeInvalid, tooManyKeys}, true},
		{fmt.Errorf("read: %w", said{codeInvalid, tooManyKeys}), true},
		{said{codeInvalid, "Guardrail in_select_cartesian_product violated: Aborting query because the cartesian " +
			"product of the IN restrictions on key produces 16 values, this exceeds fail threshold of 8."}, true},
		{said{codeInvalid, "partition key cartesian product size 16 is greater than maximum 8"}, true},
		{said{codeInvalid, "Partition KEY part key cannot be restricted by IN relation (only the last part of the " +
			"partition key can)"}, true},
		{said{codeSyntax, "line 1:52 no viable alternative at input '?'"}, true},
		{said{codeInvalid, "unconfigured table blob_parts"}, false},
		{said{codeInvalid, "Keyspace 'bowstring' does not exist"}, false},
		{said{codeInvalid, "Undefined column name data in table bowstring.blob_parts"}, false},
		{said{codeInvalid, "Some partition key parts are missing: shard"}, false},
		{said{codeInvalid, "Invalid amount of bind variables"}, false},
		{said{codeUnauthorized, "User u has no SELECT permission on <table bowstring.blob_parts>, its partition keys"},
			false},
		{said{codeOverloaded, tooManyKeys}, false},
		{errors.New(tooManyKeys), false},
	} {
		if got := refuses(c.err); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
}
