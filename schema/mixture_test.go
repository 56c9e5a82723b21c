package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"reflect"
	"slices"
	"strings"
	"testing"
)

const someMixture = `{"mixture":{"sources":[{"name":"web","dataset":"crawl","snapshot":3,"split":"train","where":"lang == \"en\"","weight":0.7},` +
	`{"dataset":"books","tag":"prod","weight":0.2,"end":"drop"},` +
	`{"name":"code","sources":["go*3",{"dataset":"c","weight":1,"end":"stop"}],"weight":0.1}],` +
	`"epoch_size":1000000,"by":"tokens","pick":"exact","schedule":[{"step":1000,"weights":{"go":1,"web":0}},` +
	`{"step":5000,"weights":{"books":1},"over":2000,"pieces":8}],"carried":{"epoch":2,"rows":[5,6,7,8]}},` +
	`"columns":["tokens"],"shuffle":{"seed":7,"epoch":2},"batch":256}`

func TestParseMixture(t *testing.T) {
	for _, in := range []string{
		someMixture,
		`{"mixture":{"sources":["a*0","b=a*1e-12"]}}`,
		`{"mixture":{"sources":["=a@3/train*0.7","b=a@prod/test*1000000000000",{"dataset":"c","where":"x > 3","weight":1}]}}`,
		`{"mixture":{"sources":[{"dataset":"a","repeat":1.5},{"dataset":"b","choose":10}]},"batch":4}`,
	} {
		r, err := ParseRequest([]byte(in))
		if err != nil {
			t.Fatalf("%s: %v", in, err)
		}
		if out := string(r.Marshal()); out != in {
			t.Errorf("marshals to\n%s, want\n%s", out, in)
		}
		ticket := Ticket{Request: r, Step: 7}
		again, err := ParseTicket(ticket.Marshal())
		if err != nil || !reflect.DeepEqual(again, ticket) {
			t.Errorf("ticket %s: %+v %v", ticket.Marshal(), again, err)
		}
	}
	for in, want := range map[string]string{ // a source has one form
		`{"dataset":"a","weight":0}`: `"a*0"`,
		`{"name":"a","weight":0.25,"dataset":"a","split":"train","snapshot":3}`: `"=a@3/train*0.25"`,
		`{"name":"b","weight":2e0,"dataset":"a","tag":"prod"}`:                  `"b=a@prod*2"`,
		`"a=a*1.50"`: `"=a*1.5"`,
		`{"name":"x","weight":1,"sources":[{"dataset":"b","weight":1}]}`:                      `{"name":"x","sources":["b*1"],"weight":1}`,
		`{"dataset":"a","operators":{"image":[{"Decode": {}}]},"weight":1}`:                   `{"dataset":"a","weight":1,"operators":{"image":[{"Decode":{}}]}}`,
		`{"dataset":"a","weight":1,"where":"x < 3 & y > 1"}`:                                  `{"dataset":"a","where":"x < 3 & y > 1","weight":1}`,
		`{"name":"x","weight":1,"sources":[{"dataset":"b","weight":1,"end":"drop"},"c/d*2"]}`: `{"name":"x","sources":[{"dataset":"b","weight":1,"end":"drop"},"c/d*2"],"weight":1}`,
	} {
		r, err := ParseRequest([]byte(`{"mixture":{"sources":[` + in + `,"other*1"]}}`))
		if err != nil {
			t.Fatalf("%s: %v", in, err)
		}
		if out := string(r.Marshal()); out != `{"mixture":{"sources":[`+want+`,"other*1"]}}` {
			t.Errorf("%s marshals to %s", in, out)
		}
		var kept Mixture // as records of lineage have it
		if err := json.Unmarshal(marshal(r.Mixture), &kept); err != nil || !reflect.DeepEqual(&kept, r.Mixture) {
			t.Errorf("%s: kept as %+v, %v", in, kept, err)
		}
	}
	r, _ := ParseRequest([]byte(`{"mixture":{"sources":[{"dataset":"a","snapshot":"prod","split":"train","weight":1}]}}`))
	if s := r.Mixture.Sources[0]; s.Tag != "prod" || s.Called() != "a.train" {
		t.Errorf("%+v is called %s", s, s.Called())
	}
}

// Nested weights are shares of their parent's weight, ramps change in pieces, and all of
// it is exact.
func TestShares(t *testing.T) {
	r, err := ParseRequest([]byte(someMixture))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range r.Mixture.Leaves() {
		names = append(names, s.Called())
	}
	if !slices.Equal(names, []string{"web", "books", "go", "c"}) {
		t.Errorf("leaves %q", names)
	}
	show := func(step int64, shares []*big.Rat) string {
		text := fmt.Sprint(step)
		for _, s := range shares {
			text += " " + s.RatString()
		}
		return text
	}
	var got []string
	for _, s := range r.Mixture.Shares() {
		got = append(got, show(s.Step, s.Shares))
	}
	want := []string{"0 7/10 1/5 3/40 1/40", "1000 0 2/3 1/6 1/6"}
	// The books go from 0.2 to 1 beside 0.1 of code.
	for i := range int64(8) {
		books := new(big.Rat).Add(big.NewRat(1, 5), new(big.Rat).Mul(big.NewRat(4, 5), big.NewRat(2*i+1, 16)))
		sum := new(big.Rat).Add(books, big.NewRat(1, 10))
		code := new(big.Rat).Quo(big.NewRat(1, 20), sum)
		want = append(want, show(5000+250*i, []*big.Rat{new(big.Rat), new(big.Rat).Quo(books, sum), code, code}))
	}
	want = append(want, "7000 0 10/11 1/22 1/22")
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	m := Mixture{Sources: []MixtureSource{{Dataset: "a", Weight: new(1.0)}, {Dataset: "b", Weight: new(2.0)}}}
	m.Schedule = []MixtureChange{{Step: 0, Weights: map[string]float64{"a": 2}}, {Step: 10, Weights: map[string]float64{"b": 4}, Over: 3}}
	var steps []int64
	for _, s := range m.Shares() {
		steps = append(steps, s.Step)
	}
	if !slices.Equal(steps, []int64{0, 10, 11, 12, 13}) {
		t.Errorf("weights change at %d", steps)
	}
}

// Every way a mixture can be wrong, and what is said of it.
func TestMixtureErrors(t *testing.T) {
	var sources []string
	for i := range MaxSources + 1 {
		sources = append(sources, fmt.Sprintf(`{"dataset":"d%d","weight":1}`, i))
	}
	deep := `{"dataset":"a","weight":1}`
	for i := range MaxNesting {
		deep = fmt.Sprintf(`{"name":"n%d","weight":1,"sources":[%s]}`, i, deep)
	}
	two := `"sources":[{"dataset":"a","weight":1},{"dataset":"b","weight":2}]`
	ramp := `{"step":%d,"weights":{"a":1},"over":1000,"pieces":64}`
	var out bytes.Buffer
	for _, in := range []string{
		`[]`, `{}`, `{"sources":[]}`, `{"sources":{}}`, `{"sources":[3]}`, `{"source":[]}`,
		`{"sources":[{"dataset":"a"}]}`, `{"sources":[{"weight":1}]}`, `{"sources":[{"dataset":"a","weight":1,"repeat":1}]}`,
		`{"sources":[{"dataset":"","weight":1}]}`, `{"sources":[{"dataset":"a b","weight":1}]}`,
		`{"sources":[{"dataset":"a","weight":1},{"dataset":"b","weight":-1}]}`,
		`{"sources":[{"dataset":"a","weight":1},{"dataset":"b","weight":1e13}]}`,
		`{"sources":[{"dataset":"a","weight":"x"}]}`, `{"sources":[{"dataset":"a","weight":1e-13}]}`,
		`{"sources":[{"dataset":"a","weight":0}]}`,
		`{"sources":[{"dataset":"a","repeat":0}]}`, `{"sources":[{"dataset":"a","repeat":1048577}]}`,
		`{"sources":[{"dataset":"a","choose":0}]}`, `{"sources":[{"dataset":"a","choose":1.5}]}`,
		`{"sources":[{"dataset":"a","weight":1},{"dataset":"b","choose":5}]}`,
		`{"sources":[{"dataset":"a","weight":1},{"dataset":"a","weight":1}]}`,
		`{"sources":[{"dataset":"a","name":"b","weight":1},{"dataset":"b","weight":1}]}`,
		`{"sources":[{"dataset":"a","name":"b c","weight":1}]}`,
		`{"sources":[{"dataset":"a","weight":1,"end":"halt"}]}`, `{"sources":[{"dataset":"a","weight":1,"end":""}]}`,
		`{"sources":[{"dataset":"a","weight":1,"snapshot":3,"tag":"prod"}]}`, `{"sources":[{"dataset":"a","weight":1,"where":" "}]}`,
		`{"sources":[{"sources":[{"dataset":"a","weight":1}],"weight":1}]}`,
		`{"sources":[{"name":"x","sources":[],"weight":1}]}`,
		`{"sources":[{"name":"x","dataset":"y","sources":[{"dataset":"a","weight":1}],"weight":1}]}`,
		`{"sources":[{"name":"x","end":"drop","sources":[{"dataset":"a","weight":1}],"weight":1}]}`,
		`{"sources":[{"name":"x","sources":[{"dataset":"a","choose":1}],"weight":1}]}`,
		`{"sources":[{"name":"x","sources":[{"dataset":"a","weight":1},{"dataset":"b c","weight":1}],"weight":1}]}`,
		`{"sources":["a"]}`, `{"sources":["a*"]}`, `{"sources":["*1"]}`, `{"sources":["a* 1"]}`, `{"sources":["a*1*2"]}`,
		`{"sources":["a*-1"]}`, `{"sources":["a*\"1\""]}`, `{"sources":["a*0x1p-2"]}`, `{"sources":["a*Inf"]}`, `{"sources":["a*1e13"]}`,
		`{"sources":["a@0*1"]}`, `{"sources":["a@*1"]}`, `{"sources":["a/*1"]}`, `{"sources":["a/b/c*1"]}`, `{"sources":["x y=a*1"]}`,
		`{"sources":["x=y=a*1"]}`, `{"sources":["a b*1"]}`, `{"sources":["a@prod/train=x*1"]}`,
		`{"sources":["a*1","b=a*1","a*2"]}`, `{"sources":["a*1",{"dataset":"b","choose":5}]}`,
		`{"sources":[` + strings.Join(sources, ",") + `]}`, `{"sources":[` + deep + `]}`,
		`{"sources":[{"dataset":"a","weight":1,"operators":{}}]}`, `{"sources":[{"dataset":"a","weight":1,"operators":{"image":[]}}]}`,
		`{"sources":[{"dataset":"a","weight":1,"operators":{"image":[{"Decode":3}]}}]}`,
		`{"sources":[{"dataset":"a","weight":1,"operators":{"n":{"expression":"x + 1"}}}]}`,
		`{"sources":[{"name":"x","weight":1,"operators":{"image":[{"Decode":{}}]},"sources":["a*1"]}]}`,
		`{` + two + `,"epoch_size":0}`, `{` + two + `,"epoch_size":4611686018427387904}`,
		`{` + two + `,"by":""}`, `{` + two + `,"pick":"exat"}`,
		`{` + two + `,"schedule":[]}`, `{` + two + `,"schedule":[{"step":3}]}`, `{` + two + `,"schedule":[{"step":3,"weights":{}}]}`,
		`{` + two + `,"schedule":[{"step":3,"weights":{"c":1}}]}`, `{` + two + `,"schedule":[{"step":3,"weights":{"a":-1}}]}`,
		`{` + two + `,"schedule":[{"step":3,"weights":{"a":1e13}}]}`, `{` + two + `,"schedule":[{"step":3,"weights":{"a":0,"b":0}}]}`,
		`{` + two + `,"schedule":[{"step":3,"weights":{"a":1}},{"step":3,"weights":{"a":2}}]}`,
		`{` + two + `,"schedule":[{"step":3,"weights":{"a":1},"over":5},{"step":7,"weights":{"a":2}}]}`,
		`{` + two + `,"schedule":[{"step":3,"weights":{"a":1},"over":0}]}`,
		`{` + two + `,"schedule":[{"step":3,"weights":{"a":1},"pieces":4}]}`,
		`{` + two + `,"schedule":[{"step":3,"weights":{"a":1},"over":3,"pieces":4}]}`,
		`{` + two + `,"schedule":[` + fmt.Sprintf(ramp+","+ramp+","+ramp+","+ramp, 0, 1000, 2000, 3000) + `]}`,
		`{"sources":[{"dataset":"a","repeat":1}],"schedule":[{"step":3,"weights":{"a":1}}]}`,
		`{"sources":[{"dataset":"a","repeat":1}],"by":"tokens"}`,
		`{` + two + `,"carried":{"epoch":1,"rows":[1,2]}}`, `{` + two + `,"epoch_size":9,"carried":{"epoch":1,"rows":[1]}}`,
		`{` + two + `,"epoch_size":9,"carried":{"epoch":1}}`,
		`{` + two + `,"epoch_size":9,"carried":{"epoch":4611686018427387904,"rows":[1,2]}}`,
		`{` + two + `,"run":"r","epoch_size":64,"carried":{"epoch":2305843009213693952,"rows":[1,2]}}`,
	} {
		_, err := ParseRequest([]byte(`{"mixture":` + in + `}`))
		reportField(t, &out, in, err)
	}
	out.WriteString("\nbeside it\n")
	for _, in := range []string{`"dataset":"a"`, `"snapshot":3`, `"tag":"prod"`, `"split":"train"`, `"where":"a > 3"`,
		`"selection":{"positions":[1]}`, `"bucket_by_length":{"column":"n"}`, `"assign":"local"`} {
		_, err := ParseRequest([]byte(`{"mixture":{` + two + `},` + in + `}`))
		reportField(t, &out, in, err)
	}
	golden(t, "mixture_errors.txt", out.Bytes())
}

func reportField(t *testing.T, out *bytes.Buffer, in string, err error) {
	t.Helper()
	var fe *FieldError
	if !errors.As(err, &fe) || !errors.Is(err, ErrInvalid) {
		t.Errorf("%.120s: %v", in, err)
		return
	}
	if len(in) > 160 {
		in = fmt.Sprintf("%s… (%d bytes)", in[:100], len(in))
	}
	fmt.Fprintf(out, "%s\n\t%v\n", in, err)
}
