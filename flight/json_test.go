package flight

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	"bowstring/schema"
)

func mustUnmarshal(t *testing.T, b []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
}

func TestDecode(t *testing.T) {
	rows := int64(9)
	for _, tt := range []struct {
		in   string
		into any
		want any    // what into then points to
		err  string // or the error
	}{
		{`{"put": {"dataset": "d", "blobs": ["a"], "media": {"a": "image"}}}`, &putRequest{}, putRequest{Put: &putCommand{Dataset: "d", Blobs: []string{"a"}, Media: map[string]string{"a": "image"}}}, ""},
		{` {"commit": true, "rows": 9} `, &commitMessage{}, commitMessage{true, &rows}, ""},
		{`{}`, &snapshotRef{}, snapshotRef{}, ""},
		{`{"blobs": []}`, &putCommand{}, putCommand{Blobs: []string{}}, ""},
		{``, &snapshotRef{}, nil, "body: got unexpected end of JSON input, want one JSON object"},
		{`{"dataset": "d"} x`, &snapshotRef{}, nil, "body: got invalid character 'x' after top-level value, want one JSON object"},
		{"{\"dataset\": \"\xff\"}", &snapshotRef{}, nil, "body: got bytes that are not UTF-8, want a JSON object"},
		{`[]`, &snapshotRef{}, nil, "body: got [], want an object"},
		{`null`, &snapshotRef{}, nil, "body: got null, want an object"},
		{`{"put": null}`, &putRequest{}, nil, "put: got null, want an object"},
		{`{"put": {"dataset": 1}}`, &putRequest{}, nil, "put.dataset: got 1, want a string"},
		{`{"dataset": null}`, &snapshotRef{}, nil, "dataset: got null, want a string"},
		{`{"snapshot": 1.0}`, &snapshotRef{}, nil, "snapshot: got 1.0, want an integer below 2^63"},
		{`{"snapshot": "1"}`, &snapshotRef{}, nil, `snapshot: got "1", want an integer below 2^63`},
		{`{"snapshot": 9223372036854775808}`, &snapshotRef{}, nil, "snapshot: got 9223372036854775808, want an integer below 2^63"},
		{`{"snapshot": 1, "snapshot": 1}`, &snapshotRef{}, nil, "snapshot: got it a second time, want each field at most once"},
		{`{"Snapshot": 1}`, &snapshotRef{}, nil, `Snapshot: got an unknown field, want one of dataset, snapshot (did you mean "snapshot"?)`},
		{`{"blobs": "a"}`, &putCommand{}, nil, `blobs: got "a", want a list of strings`},
		{`{"blobs": ["a", null]}`, &putCommand{}, nil, `blobs: got ["a", null], want a list of strings`},
		{`{"media": {"null": 1}}`, &putCommand{}, nil, `media: got {"null": 1}, want an object of strings`},
		{`{"commit": "yes"}`, &commitMessage{}, nil, `commit: got "yes", want true or false`},
		{`{"x": 1}`, &struct{}{}, nil, "x: got an unknown field, want no fields"},
	} {
		err := decode("body", []byte(tt.in), tt.into)
		if tt.err != "" {
			if !errors.Is(err, schema.ErrInvalid) || err.Error() != tt.err {
				t.Errorf("%s: got %v, want %s", tt.in, err, tt.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.in, err)
		} else if got := reflect.ValueOf(tt.into).Elem().Interface(); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: got %+v, want %+v", tt.in, got, tt.want)
		}
	}
}

// FuzzDecode: whatever comes in, it is decoded as encoding/json would, or
// refused as invalid.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{`{}`, `{"put": {"dataset": "d", "mode": "append", "blobs": ["a", "b"], "media": {"a": "image"}}}`, `{"selection": {"dataset": "d", "snapshot": 3}}`, `{"put": {"blobs": [null]}}`, `[`, `{"put": 1e3}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var got, want putRequest
		if err := decode("request", b, &got); err != nil {
			if !errors.Is(err, schema.ErrInvalid) {
				t.Errorf("%v is not invalid", err)
			}
			return
		}
		if err := json.Unmarshal(b, &want); err != nil {
			t.Fatalf("decoded what is no JSON: %v", err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
}
