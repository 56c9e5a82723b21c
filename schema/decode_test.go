package schema

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"
)

// Structs with every kind of field that DecodeJSON knows.
type (
	decoded struct {
		embedded
		Name  string            `json:"name"`
		On    bool              `json:"on"`
		Whole int64             `json:"whole"`
		Count *int64            `json:"count"`
		Names []string          `json:"names"`
		Rows  []int64           `json:"rows"`
		Media map[string]string `json:"media"`
		Bits  []byte            `json:"bits"`
		Inner *inner            `json:"inner"`
	}
	number struct {
		X float64 `json:"x"`
	}
	embedded struct {
		Seed uint64 `json:"seed"`
	}
	inner struct {
		Name string `json:"name"`
		Part struct {
			Name string `json:"name,omitempty"`
		} `json:"part"`
	}
)

func TestDecodeJSON(t *testing.T) {
	nine := int64(9)
	for _, tt := range []struct {
		in   string
		into any
		want any    // what into then points to
		err  string // or the error
	}{
		{` { "name" : "a, \"b\" \\" , "on":true,"whole" : 9223372036854775807,"count":9 , "seed":18446744073709551615 } `, &decoded{},
			decoded{embedded: embedded{1<<64 - 1}, Name: `a, "b" \`, On: true, Whole: 1<<63 - 1, Count: &nine}, ""},
		{`{"names": ["a", "]", "\u00e9"], "rows": [ 3 ,1], "media": {"a": "image", "{": "}"}, "inner": {"name": "d", "part":{"name":"e"}}}`, &decoded{},
			decoded{Names: []string{"a", "]", "é"}, Rows: []int64{3, 1},
				Media: map[string]string{"a": "image", "{": "}"},
				Inner: &inner{"d", struct {
					Name string `json:"name,omitempty"`
				}{"e"}}}, ""},
		{`{ }`, &decoded{}, decoded{}, ""},
		{`{"bits": "AP+\u002fgA=="}`, &decoded{}, decoded{Bits: []byte{0, 0xff, 0xbf, 0x80}}, ""},
		{`{"bits": ""}`, &decoded{}, decoded{Bits: []byte{}}, ""},
		{`{"bits": [0, 255]}`, &decoded{}, nil, "bits: got [0, 255], want a string of base64"},
		{`{"bits": null}`, &decoded{}, nil, "bits: got null, want a string of base64"},
		{`{"bits": "AP-_"}`, &decoded{}, nil,
			`bits: got "AP-_", want base64 of the standard alphabet, padded with =; there is another character at 2`},
		{`{"bits": "AA"}`, &decoded{}, nil,
			`bits: got "AA", want base64 of the standard alphabet, padded with =; 2 characters are no multiple of 4`},
		{`{"bits": "AB=="}`, &decoded{}, nil,
			`bits: got "AB==", want base64 of the standard alphabet, padded with =; there is padding in the middle, or a bit set behind the last byte`},
		{`{"bits": "AAAA\nAAAA"}`, &decoded{}, nil,
			`bits: got "AAAA\nAAAA", want base64 of the standard alphabet, padded with =; there is another character at 4`},
		{`{"bits": "A A\n"}`, &decoded{}, nil,
			`bits: got "A A\n", want base64 of the standard alphabet, padded with =; there is another character at 1`},
		{`{"bits": "AA==AA=="}`, &decoded{}, nil,
			`bits: got "AA==AA==", want base64 of the standard alphabet, padded with =; there is padding in the middle, or a bit set behind the last byte`},
		{`{"bits": "é"}`, &decoded{}, nil,
			`bits: got "é", want base64 of the standard alphabet, padded with =; there is another character at 0`},
		{`{"names": [], "rows": [ ], "media": { }}`, &decoded{},
			decoded{Names: []string{}, Rows: []int64{}, Media: map[string]string{}}, ""},
		{``, &decoded{}, nil, "body: got nothing, want a JSON object"},
		{`{"name": "d"`, &decoded{}, nil, "body: got unexpected end of JSON input at offset 12, want one JSON object"},
		{`{"name": "d"} x`, &decoded{}, nil, "body: got invalid character 'x' after top-level value at offset 15, " +
			"want one JSON object"},
		{"{\"name\": \"\xff\"}", &decoded{}, nil, "body: got byte 0xff at offset 10, want valid UTF-8"},
		{`[]`, &decoded{}, nil, "body: got [], want an object"},
		{`null`, &decoded{}, nil, "body: got null, want an object"},
		{`{"inner": null}`, &decoded{}, nil, "inner: got null, want an object"},
		{`{"inner": {"name": 1}}`, &decoded{}, nil, "inner.name: got 1, want a string"},
		{`{"inner": {"part": {"nam": 1}}}`, &decoded{}, nil,
			`inner.part.nam: got an unknown field, want name (did you mean "name"?)`},
		{`{"name": null}`, &decoded{}, nil, "name: got null, want a string"},
		{`{"on": "yes"}`, &decoded{}, nil, `on: got "yes", want true or false`},
		{`{"on": null}`, &decoded{}, nil, `on: got null, want true or false`},
		{`{"whole": 1.0}`, &decoded{}, nil, "whole: got 1.0, want an integer from 0 to 2^63-1"},
		{`{"whole": "1"}`, &decoded{}, nil, `whole: got "1", want an integer from 0 to 2^63-1`},
		{`{"whole": -1}`, &decoded{}, nil, `whole: got -1, want an integer from 0 to 2^63-1`},
		{`{"whole": 9223372036854775808}`, &decoded{}, nil,
			"whole: got 9223372036854775808, want an integer from 0 to 2^63-1"},
		{`{"count": null}`, &decoded{}, nil, "count: got null, want an integer from 0 to 2^63-1"},
		{`{"seed": 18446744073709551616}`, &decoded{}, nil,
			"seed: got 18446744073709551616, want an integer from 0 to 2^64-1"},
		{`{"whole": 1, "whole": 1}`, &decoded{}, nil, "whole: got it a second time, 1, want each field at most once"},
		{`{"whole": 1, "\u0077hole": 1}`, &decoded{}, nil,
			"whole: got it a second time, 1, want each field at most once"},
		{`{"Whole": 1}`, &decoded{}, nil,
			`Whole: got an unknown field, want one of seed, name, on, whole, count, names, rows, media, bits, inner (did you mean "whole"?)`},
		{`{"names": "a"}`, &decoded{}, nil, `names: got "a", want a list of strings`},
		{`{"names": ["a", null]}`, &decoded{}, nil, `names[1]: got null, want a string`},
		{`{"rows": {}}`, &decoded{}, nil, `rows: got {}, want a list of integers`},
		{`{"rows": [1, [2, 3]]}`, &decoded{}, nil, `rows[1]: got [2, 3], want an integer from 0 to 2^63-1`},
		{`{"media": []}`, &decoded{}, nil, `media: got [], want an object of strings`},
		{`{"media": {"null": 1}}`, &decoded{}, nil, `media.null: got 1, want a string`},
		{`{"media": {"a b": 1}}`, &decoded{}, nil, `media."a b": got 1, want a string`},
		{`{"media": {"a": "b", "a": "c"}}`, &decoded{}, nil,
			`media.a: got it a second time, "c", want each field at most once`},
		{`{"x": 1}`, &struct{}{}, nil, "x: got an unknown field, want no fields"},
		{`{"x": 1.5e3}`, &number{}, number{1500}, ""},
		{`{"x": 0}`, &number{}, number{}, ""},
		{`{"x": -1}`, &number{}, nil, "x: got -1, want a number from 0"},
		{`{"x": 1e999}`, &number{}, nil, "x: got 1e999, want a number from 0"},
		{`{"x": "1"}`, &number{}, nil, `x: got "1", want a number from 0`},
		{`{"x": null}`, &number{}, nil, "x: got null, want a number from 0"},
	} {
		err := DecodeJSON("body", []byte(tt.in), tt.into)
		if tt.err != "" {
			if !errors.Is(err, ErrInvalid) || err.Error() != tt.err {
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
	// A field that there is no rule for is a mistake of ours.
	if err := DecodeJSON("body", []byte(`{"x": 1}`), &struct {
		X int8 `json:"x"`
	}{}); err == nil || errors.Is(err, ErrInvalid) {
		t.Errorf("a byte: got %v, want an error that is not the client's", err)
	}
}

// FuzzDecodeJSON: whatever comes in, it is decoded as encoding/json would, or
// refused as invalid.
func FuzzDecodeJSON(f *testing.F) {
	for _, seed := range []string{`{}`, ` {"name": "d\\\"", "names": ["a", "b"], "media": {"a": "image"}} `,
		`{"inner": {"name": "d", "part": {}}, "whole": 3}`,
		`{"rows": [1, 2 ,3], "seed": 7, "count":0, "on":false}`, `{"names": [null]}`, `[`, `{"inner": 1e3}`,
		`{"na\u006de": "\ud800"}`, `{"bits": "AP+/gA=="}`,
		`{"bits": "AA\n=="}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var got, want decoded
		if err := DecodeJSON("request", b, &got); err != nil {
			if !errors.Is(err, ErrInvalid) {
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
