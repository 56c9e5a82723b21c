package schema

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

const someKey = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestParseRequest(t *testing.T) {
	stop := int64(9)
	for _, test := range []struct {
		in    string
		want  Request
		canon string // "" if in is canonical
	}{
		{`{"dataset":"imagenet"}`, Request{Dataset: "imagenet"}, ""},
		{`{"dataset":"a","snapshot":3,"split":"train","where":"a < 3 && b > \"<é>\"","selection":{"name":"` + someKey +
			`"},"columns":["id","é"],` +
			`"layout":"binary","shuffle":{"seed":18446744073709551615,"epoch":2},"batch":256,"batch_bytes":1048576,"world":{"size":8},` +
			`"order":"window:12","remainder":"pad","on_error":"null"}`,
			Request{Dataset: "a", Snapshot: 3, Split: "train", Where: `a < 3 && b > "<é>"`,
				Selection: &SelectionRef{Name: someKey},
				Columns:   []string{"id", "é"}, Layout: LayoutBinary, Shuffle: &Shuffle{Seed: 1<<64 - 1, Epoch: 2}, Batch: 256,
				BatchBytes: 1 << 20,
				World:      &World{Size: 8}, Order: "window:12", Remainder: RemainderPad, OnError: OnErrorNull}, ""},
		{` { "snapshot" : 0 , "dataset":"a","shuffle":{} , "selection":{"positions":[ 5, 1,3 ]} } ` + "\n",
			Request{Dataset: "a", Shuffle: &Shuffle{}, Selection: &SelectionRef{Positions: []int64{1, 3, 5}}},
			`{"dataset":"a","selection":{"positions":[1,3,5]},"shuffle":{"seed":0,"epoch":0}}`},
		{`{"dataset":"a","shuffle":{"seed":7,"epoch":1,"block":"8MiB","blocks":64}}`,
			Request{Dataset: "a", Shuffle: &Shuffle{Seed: 7, Epoch: 1, Block: "8MiB", Blocks: 64}}, ""},
		{`{"dataset":"a","shuffle":{"seed":7,"epoch":1,"block_rows":76,"blocks":64}}`,
			Request{Dataset: "a", Shuffle: &Shuffle{Seed: 7, Epoch: 1, BlockRows: 76, Blocks: 64}}, ""},
		{`{"dataset":"a","tag":"prod"}`, Request{Dataset: "a", Tag: "prod"}, ""},
		{`{"dataset":"a","pack":{"length":4096,"column":"tokens"}}`,
			Request{Dataset: "a", Pack: &Pack{Length: 4096, Column: "tokens"}}, ""},
		{`{"dataset":"a","batch":8,"pack":{"length":16,"column":"tokens","lengths":"n","by":"first_fit","window":99,` +
			`"long":"cut","pad":0,"balance":{"cost":"len * len"}}}`,
			Request{Dataset: "a", Batch: 8, Pack: &Pack{Length: 16, Column: "tokens", Lengths: "n", By: PackFirstFit,
				Window: 99, Long: LongCut, Pad: new(int64(0)), Balance: &PackBalance{Cost: "len * len"}}}, ""},
		{`{"dataset":"a","world":{"size":8,"replicate":4},"digest":true}`,
			Request{Dataset: "a", World: &World{Size: 8, Replicate: 4}, Digest: true}, ""},
		{`{"dataset":"a","world":{"mesh":"pp=1,dp=2,tp=4"},"digest":false}`,
			Request{Dataset: "a", World: &World{Mesh: "pp=1,dp=2,tp=4"}}, `{"dataset":"a","world":{"mesh":"pp=1,dp=2,tp=4"}}`},
		{`{"dataset":"a","snapshot":"prod"}`, Request{Dataset: "a", Tag: "prod"}, `{"dataset":"a","tag":"prod"}`},
		{`{"dataset":"a","selection":{"positions":[9223372036854775807]}}`,
			Request{Dataset: "a", Selection: &SelectionRef{Positions: []int64{1<<63 - 1}}}, ""},
	} {
		got, err := ParseRequest([]byte(test.in))
		if err != nil {
			t.Errorf("%s: %v", test.in, err)
			continue
		}
		if !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: got %+v, want %+v", test.in, got, test.want)
		}
		if test.canon == "" {
			test.canon = test.in
		}
		if out := string(got.Marshal()); out != test.canon {
			t.Errorf("marshals to\n%s, want\n%s", out, test.canon)
		}
		for _, ticket := range []Ticket{
			{Request: got},
			{Request: got, Step: 7, Row: 3, Stride: 4, Stop: &stop},
			{Request: got, Step: 7, Stride: 4, Epochs: 1},
		} {
			again, err := ParseTicket(ticket.Marshal())
			if err != nil || !reflect.DeepEqual(again, ticket) {
				t.Errorf("ticket %s: %+v %v", ticket.Marshal(), again, err)
			}
		}
	}
}

func TestParseTicket(t *testing.T) {
	for _, test := range []struct {
		in   string
		want Ticket
	}{
		{`{"dataset":"a","shuffle":{"seed":1,"epoch":18446744073709551613},"rank":0,"step":3,"stride":2,"epochs":3}`,
			Ticket{Request: Request{Dataset: "a", Shuffle: &Shuffle{Seed: 1, Epoch: 1<<64 - 3}}, Step: 3, Stride: 2, Epochs: 3}},
		{`{"dataset":"a","world":{"size":4,"replicate":2},"digest":true,"rank":3,"step":2,"row":5,"digested":"00000000000000ff"}`,
			Ticket{Request: Request{Dataset: "a", World: &World{Size: 4, Replicate: 2}, Digest: true}, Rank: 3, Step: 2, Row: 5,
				Digested: "00000000000000ff"}},
		{`{"dataset":"a","rank":0,"step":0,"epochs":2147483647}`,
			Ticket{Request: Request{Dataset: "a"}, Epochs: MaxEpochs}},
		{`{"dataset":"a","order":"free","rank":0,"step":4,"row":2,"stop":9,"served":"AP+/gA=="}`,
			Ticket{Request: Request{Dataset: "a", Order: OrderFree}, Step: 4, Row: 2, Stop: new(int64(9)),
				Served: []byte{0, 0xff, 0xbf, 0x80}}},
		{`{"dataset":"a","order":"window:3","rank":0,"step":0,"epochs":2,"served":"AQ=="}`,
			Ticket{Request: Request{Dataset: "a", Order: "window:3"}, Epochs: 2, Served: []byte{1}}},
		{`{"dataset":"a","order":"window","rank":0,"step":0,"served":"` + strings.Repeat("/", 4*(MaxServedBytes/3)) +
			`/w=="}`,
			Ticket{Request: Request{Dataset: "a", Order: OrderWindow},
				Served: bytes.Repeat([]byte{0xff}, MaxServedBytes)}},
	} {
		got, err := ParseTicket([]byte(test.in))
		if err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%.150s: got %+v %v, want %+v", test.in, got, err, test.want)
		}
		if out := string(got.Marshal()); out != test.in {
			t.Errorf("marshals to\n%s, want\n%s", out, test.in)
		}
	}
}

func TestDefaults(t *testing.T) {
	for order, want := range map[string]string{"": "strict 0", "strict": "strict 0", "window": "window 16",
		"window:3": "window 3", "free": "free 0"} {
		mode, steps := Request{Order: order}.OrderOf()
		if got := fmt.Sprintf("%s %d", mode, steps); got != want {
			t.Errorf("order %q is %s, want %s", order, got, want)
		}
	}
	if n := (Request{}).WorldSize(); n != 1 {
		t.Error(n)
	}
	if n := (Request{World: &World{Size: 6}}).WorldSize(); n != 6 {
		t.Error(n)
	}
}

// Every way a request or ticket can be wrong, and what is said of it.
func TestRequestErrors(t *testing.T) {
	long := strings.Repeat("x", 200)
	many := "[" + strings.Repeat("0,", MaxPositions) + "1]"
	requests := []string{
		``, ` `, `null`, `[]`, `3`, `"a"`, `{`, `{"dataset"`, `{"dataset":"a"`, `{"dataset":"a"} x`,
		`{"dataset":"a"}{}`, `{'dataset':"a"}`,
		`{"dataset":"a",}`, "{\"dataset\":\"\xff\"}", strings.Repeat(" ", MaxRequestBytes+1),
		`{}`, `{"dataset":null}`, `{"dataset":3}`, `{"dataset":""}`, `{"dataset":"a@3"}`, `{"dataset":"-a"}`,
		`{"dataset":"a b"}`, `{"dataset":"é"}`,
		`{"dataset":"` + long + `"}`,
		`{"dataset":"a","dataset":"b"}`, `{"dataset":"a","Dataset":"b"}`, `{"dataset":"a","shufle":{}}`,
		`{"dataset":"a","zzz":1}`,
		`{"dataset":"a","":1}`, `{"dataset":"a","` + long + `":1}`, `{"dataset":"a","rank":1}`,
		`{"dataset":"a","snapshot":-1}`, `{"dataset":"a","snapshot":1.5}`, `{"dataset":"a","snapshot":1.0}`,
		`{"dataset":"a","snapshot":1e3}`,
		`{"dataset":"a","snapshot":"3"}`, `{"dataset":"a","snapshot":9223372036854775808}`,
		`{"dataset":"a","snapshot":true}`,
		`{"dataset":"a","snapshot":""}`, `{"dataset":"a","snapshot":"a/b"}`,
		`{"dataset":"a","snapshot":3,"tag":"prod"}`, `{"dataset":"a","snapshot":"x","tag":"prod"}`,
		`{"dataset":"a","tag":""}`, `{"dataset":"a","tag":3}`, `{"dataset":"a","tag":"99999999999999999999"}`,
		`{"dataset":"a","split":""}`, `{"dataset":"a","split":["train"]}`, `{"dataset":"a","split":"a/b"}`,
		`{"dataset":"a","where":""}`, `{"dataset":"a","where":{"a":1}}`, `{"dataset":"a","where":"` +
			strings.Repeat("x", MaxWhereBytes+1) + `"}`,
		`{"dataset":"a","selection":"x"}`, `{"dataset":"a","selection":{}}`, `{"dataset":"a","selection":{"name":"x"}}`,
		`{"dataset":"a","selection":{"name":""}}`,
		`{"dataset":"a","selection":{"name":"` + strings.ToUpper(someKey) + `"}}`,
		`{"dataset":"a","selection":{"name":"` + someKey + `","positions":[1]}}`,
		`{"dataset":"a","selection":{"position":[1]}}`,
		`{"dataset":"a","selection":{"positions":[]}}`, `{"dataset":"a","selection":{"positions":3}}`,
		`{"dataset":"a","selection":{"positions":[1,1]}}`,
		`{"dataset":"a","selection":{"positions":[1,-1]}}`, `{"dataset":"a","selection":{"positions":[1,"2,3"]}}`,
		`{"dataset":"a","selection":{"positions":[[1,2]]}}`,
		`{"dataset":"a","selection":{"positions":[1.5]}}`, `{"dataset":"a","selection":{"positions":` + many + `}}`,
		`{"dataset":"a","columns":[]}`, `{"dataset":"a","columns":"id"}`, `{"dataset":"a","columns":["id",3]}`,
		`{"dataset":"a","columns":["id","id"]}`,
		`{"dataset":"a","columns":[""]}`, `{"dataset":"a","columns":["` + long + `"]}`,
		`{"dataset":"a","layout":"hugingface"}`, `{"dataset":"a","layout":""}`, `{"dataset":"a","layout":1}`,
		`{"dataset":"a","shuffle":true}`, `{"dataset":"a","shuffle":{"sed":1}}`,
		`{"dataset":"a","shuffle":{"seed":-1}}`,
		`{"dataset":"a","shuffle":{"seed":18446744073709551616}}`, `{"dataset":"a","shuffle":{"seed":1,"seed":2}}`,
		`{"dataset":"a","shuffle":{"epoch":null}}`,
		`{"dataset":"a","shuffle":{"block":"8MB"}}`, `{"dataset":"a","shuffle":{"block":"0MiB"}}`,
		`{"dataset":"a","shuffle":{"block":"1025GiB"}}`, `{"dataset":"a","shuffle":{"block":"8MiB","block_rows":3}}`,
		`{"dataset":"a","shuffle":{"blocks":3}}`, `{"dataset":"a","shuffle":{"block":"8MiB","blocks":1048577}}`,
		`{"dataset":"a","shuffle":{"block_rows":-1}}`,
		`{"dataset":"a","batch":0}`, `{"dataset":"a","batch":2147483648}`, `{"dataset":"a","batch_bytes":0}`,
		`{"dataset":"a","batch_bytes":1073741825}`,
		`{"dataset":"a","world":8}`, `{"dataset":"a","world":{}}`, `{"dataset":"a","world":{"size":0}}`,
		`{"dataset":"a","world":{"size":65537}}`, `{"dataset":"a","world":{"sise":1}}`,
		`{"dataset":"a","world":{"size":8,"replicate":3}}`, `{"dataset":"a","world":{"size":8,"replicate":0}}`,
		`{"dataset":"a","world":{"size":8,"replicate":16}}`, `{"dataset":"a","world":{"replicate":2}}`,
		`{"dataset":"a","world":{"mesh":"dp=2","replicate":2}}`, `{"dataset":"a","world":{"mesh":"dp=2","size":2}}`,
		`{"dataset":"a","world":{"mesh":""}}`, `{"dataset":"a","world":{"mesh":"dp=2,tp=0"}}`,
		`{"dataset":"a","world":{"mesh":"dp=2, tp=2"}}`, `{"dataset":"a","world":{"mesh":"dp=2,tp=02"}}`,
		`{"dataset":"a","world":{"mesh":"dp=2,tp=2,dp=2"}}`, `{"dataset":"a","world":{"mesh":"dp=2,dt=2"}}`,
		`{"dataset":"a","world":{"mesh":"dp=2,ep=2"}}`, `{"dataset":"a","world":{"mesh":"dp=256,tp=257"}}`,
		`{"dataset":"a","world":{"mesh":["dp","tp"]}}`, `{"dataset":"a","world":{"mesh":"dp"}}`,
		`{"dataset":"a","world":{"mesh":"dp=2,tp=2"},"order":"free"}`,
		`{"dataset":"a","world":{"size":4,"replicate":4},"order":"window:3"}`,
		`{"dataset":"a","digest":1}`, `{"dataset":"a","digest":true,"order":"free"}`,
		`{"dataset":"a","assign":"local","ranks":["n","m"],"world":{"mesh":"dp=4,tp=2"}}`,
		`{"dataset":"a","order":"random"}`, `{"dataset":"a","order":""}`, `{"dataset":"a","order":"window:0"}`,
		`{"dataset":"a","order":"window:08"}`, `{"dataset":"a","order":"window:+8"}`,
		`{"dataset":"a","order":"window:1048577"}`,
		`{"dataset":"a","remainder":"dorp"}`, `{"dataset":"a","on_error":"ignore"}`,
		`{"dataset":"a","assign":"locale"}`, `{"dataset":"a","assign":"local","batch":262145}`,
		`{"dataset":"a","owners":"` + someKey + `"}`,
		`{"dataset":"a","assign":"local","owners":"x"}`, `{"dataset":"a","assign":"plan","ranks":["n"]}`,
		`{"dataset":"a","assign":"local","ranks":["n","m"]}`,
		`{"dataset":"a","assign":"local","ranks":["n","m m"],"world":{"size":2}}`,
		`{"dataset":"a","assign":"local","ranks":[]}`,
		`{"dataset":"a","pack":{}}`, `{"dataset":"a","pack":{"length":0,"column":"t"}}`, `{"dataset":"a","pack":{"length":8}}`,
		`{"dataset":"a","pack":{"length":1048577,"column":"t"}}`, `{"dataset":"a","pack":{"length":8,"column":""}}`,
		`{"dataset":"a","pack":{"length":8,"column":"t","lengths":""}}`, `{"dataset":"a","pack":{"length":8,"column":"t","by":"best"}}`,
		`{"dataset":"a","pack":{"length":8,"column":"t","window":65537}}`,
		`{"dataset":"a","pack":{"length":8,"column":"t","long":"dorp"}}`,
		`{"dataset":"a","pack":{"length":8,"column":"t","by":"split","long":"cut"}}`,
		`{"dataset":"a","pack":{"length":8,"column":"t","pad":-1}}`, `{"dataset":"a","pack":{"length":8,"column":"t","pad":"x"}}`,
		`{"dataset":"a","pack":{"length":8,"column":"t","balance":{}}}`,
		`{"dataset":"a","pack":{"length":8,"column":"t","balance":{"cost":" "}}}`,
		`{"mixture":{"sources":[{"dataset":"a","weight":1}]},"pack":{"length":8,"column":"t"}}`,
		`{"dataset":"a","shuffle":{"seed":1,"epoch":0},"sample":{"weights":"w"},"pack":{"length":8,"column":"t"}}`,
		`{"dataset":"a","bucket_by_length":{"column":"t"},"pack":{"length":8,"column":"t"}}`,
		`{"dataset":"a","order":"free","pack":{"length":8,"column":"t"}}`,
		`{"dataset":"a","assign":"local","pack":{"length":8,"column":"t"}}`,
		`{"dataset":"a","place":"client","operators":{"image":[{"decode":{}}]},"pack":{"length":8,"column":"t"}}`,
		`{"dataset":"a","layout":"huggingface","pack":{"length":8,"column":"t"}}`,
		`{"dataset":"a","on_error":"skip","pack":{"length":8,"column":"t"}}`,
		`{"dataset":"a","batch":1048577,"pack":{"length":8,"column":"t"}}`,
	}
	tickets := []string{
		``, `{"dataset":"a","rnk":1}`, `{"dataset":"a","rank":1}`, `{"dataset":"a","rank":-1}`,
		`{"dataset":"a","rank":8,"world":{"size":8}}`, `{"dataset":"a","rank":"0"}`,
		`{"dataset":"a","rank":8,"world":{"mesh":"dp=2,tp=4"}}`,
		`{"dataset":"a","row":3,"digested":"0123456789abcdef"}`, `{"dataset":"a","digest":true,"digested":"0123456789abcdef"}`,
		`{"dataset":"a","row":3,"digest":true,"digested":"0123456789ABCDEF"}`,
		`{"dataset":"a","step":-1}`, `{"dataset":"a","step":1.5}`, `{"dataset":"a","step":9223372036854775808}`,
		`{"dataset":"a","row":-1}`, `{"dataset":"a","row":2147483648}`,
		`{"dataset":"a","stride":0}`, `{"dataset":"a","stride":2147483648}`, `{"dataset":"a","step":5,"stop":4}`,
		`{"dataset":"a","stop":null}`, `{"dataset":"a","stop":-1}`,
		`{"dataset":"a","shuffle":{"seed":"1"}}`,
		`{"dataset":"a","epochs":0}`, `{"dataset":"a","epochs":-1}`, `{"dataset":"a","epochs":2147483648}`,
		`{"dataset":"a","epochs":"3"}`, `{"dataset":"a","epochs":null}`,
		`{"dataset":"a","epochs":3,"stop":9}`, `{"dataset":"a","epochs":1,"stop":0}`,
		`{"dataset":"a","epochs":3,"shuffle":{"epoch":18446744073709551614}}`,
		`{"dataset":"a","epochs":2,"shuffle":{"epoch":18446744073709551615}}`, `{"dataset":"a","epoch":2}`,
		`{"dataset":"a","served":"AQ=="}`, `{"dataset":"a","order":"strict","served":"AQ=="}`,
		`{"dataset":"a","order":"free","served":[1]}`, `{"dataset":"a","order":"free","served":null}`,
		`{"dataset":"a","order":"free","served":""}`, `{"dataset":"a","order":"free","served":"AA=="}`,
		`{"dataset":"a","order":"window","served":"AQA="}`,
		`{"dataset":"a","order":"free","served":"AQ"}`, `{"dataset":"a","order":"free","served":"_w=="}`,
		`{"dataset":"a","order":"free","served":"AR=="}`, `{"dataset":"a","order":"free","served":"AQ==\n"}`,
		`{"dataset":"a","order":"free","served":"` + strings.Repeat("/", 4*(MaxServedBytes/3+1)) + `"}`,
	}
	var out bytes.Buffer
	report := func(in string, err error) {
		var fe *FieldError
		if !errors.As(err, &fe) || !errors.Is(err, ErrInvalid) {
			t.Errorf("%.80s: %v", in, err)
			return
		}
		if len(in) > 120 {
			in = fmt.Sprintf("%s… (%d bytes)", in[:80], len(in))
		}
		fmt.Fprintf(&out, "%q\n\t%v\n", in, err)
	}
	for _, in := range requests {
		_, err := ParseRequest([]byte(in))
		report(in, err)
	}
	out.WriteString("\ntickets\n")
	for _, in := range tickets {
		_, err := ParseTicket([]byte(in))
		report(in, err)
	}
	out.WriteString("\npaths\n")
	for _, path := range [][]string{nil, {""}, {"a", ""}, {"a", "b", "c"}, {"a@"}, {"a@0"}, {"a@x y"}, {"a@" + long},
		{"a@9223372036854775808"}, {"a@-1"}, {"a@+1"}, {"a@3@4"}, {"@3"}, {"a", "b@3"}, {"a/b"}} {
		_, err := RequestFromPath(path)
		report(fmt.Sprintf("%q", path), err)
	}
	golden(t, "request_errors.txt", out.Bytes())
}

// A request that a caller builds by hand is checked like a parsed one.
func TestCheckRequest(t *testing.T) {
	for name, r := range map[string]Request{
		"unsorted positions": {Dataset: "a", Selection: &SelectionRef{Positions: []int64{2, 1}}},
		"columns, but none":  {Dataset: "a", Columns: []string{}},
		"negative batch":     {Dataset: "a", Batch: -1},
		"negative bytes":     {Dataset: "a", BatchBytes: -1},
		"no world":           {Dataset: "a", World: &World{}},
		"broken text":        {Dataset: "a", Where: "\xff"},
		"another layout":     {Dataset: "a", Layout: "x"},
	} {
		if err := r.Check(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, tk := range map[string]Ticket{
		"negative row":    {Request: Request{Dataset: "a"}, Row: -1},
		"negative step":   {Request: Request{Dataset: "a"}, Step: -1},
		"negative stride": {Request: Request{Dataset: "a"}, Stride: -1},
		"no dataset":      {},
		"negative epochs": {Request: Request{Dataset: "a"}, Epochs: -1},
		"no bit is set":   {Request: Request{Dataset: "a", Order: OrderFree}, Served: []byte{}},
		"bits for strict": {Request: Request{Dataset: "a"}, Served: []byte{1}},
	} {
		if err := tk.Check(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRequestFromPath(t *testing.T) {
	for path, want := range map[string]Request{
		"imagenet":         {Dataset: "imagenet"},
		"imagenet train":   {Dataset: "imagenet", Split: "train"},
		"imagenet@3 train": {Dataset: "imagenet", Snapshot: 3, Split: "train"},
		"imagenet@12":      {Dataset: "imagenet", Snapshot: 12},
		"imagenet@prod":    {Dataset: "imagenet", Tag: "prod"},
		"imagenet@1.2 val": {Dataset: "imagenet", Tag: "1.2", Split: "val"},
	} {
		got, err := RequestFromPath(strings.Fields(path))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v %v", path, got, err)
		}
	}
}

func fuzzSeeds(f *testing.F) {
	f.Add([]byte(`{"dataset":"a","snapshot":3,"split":"train","where":"a < 3","selection":{"positions":[3,1]},"columns":["id"],"layout":"binary","shuffle":{"seed":5},"batch":2,"world":{"size":8},"order":"window:2","remainder":"pad","on_error":"skip","rank":3,"step":4,"row":1,"stride":2,"stop":9}`))
	f.Add([]byte(someMixture))
	f.Add([]byte(`{"mixture":{"sources":[{"dataset":"a","repeat":1.5},{"dataset":"b","choose":10}]},"rank":0}`))
	f.Add([]byte(`{"dataset":"a","order":"free","shuffle":{"epoch":7},"rank":0,"step":4,"row":1,"epochs":3,"served":"AP+/gA=="}`))
	f.Add([]byte(`{"dataset":"a","order":"window","served":"AQ\n=="}`))
	f.Add([]byte(`{"dataset":"a","where":"\ud800 \u2028 <>"}`))
	f.Add([]byte(`{"dataset":"a","world":{"size":1e1}}`))
	f.Add([]byte(`{"dataset":"a","world":{"mesh":"dp=2,tp=4"},"digest":true,"rank":7,"row":1,"digested":"00000000000000ff"}`))
	f.Add([]byte(`{"dataset":"a","world":{"size":8,"replicate":4}}`))
	f.Add([]byte(`[]`))
}

func FuzzParseRequest(f *testing.F) {
	fuzzSeeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseRequest(b)
		if err != nil {
			var fe *FieldError
			if !errors.As(err, &fe) {
				t.Fatalf("%q: %v", b, err)
			}
			return
		}
		again, err := ParseRequest(r.Marshal())
		if err != nil || !reflect.DeepEqual(r, again) {
			t.Fatalf("%s: %+v %+v %v", r.Marshal(), r, again, err)
		}
	})
}

func FuzzParseTicket(f *testing.F) {
	fuzzSeeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		tk, err := ParseTicket(b)
		if err != nil {
			var fe *FieldError
			if !errors.As(err, &fe) {
				t.Fatalf("%q: %v", b, err)
			}
			return
		}
		again, err := ParseTicket(tk.Marshal())
		if err != nil || !reflect.DeepEqual(tk, again) {
			t.Fatalf("%s: %+v %+v %v", tk.Marshal(), tk, again, err)
		}
		// The tickets of a stream: two of its epoch, one of the next, and the first once more.
		var encoder TicketEncoder
		later, next := tk, tk
		later.Step, later.Row, later.Digested = tk.Step+1, tk.Row+2, "00000000000000ff"
		if tk.Shuffle != nil {
			shuffle := *tk.Shuffle
			shuffle.Epoch++
			next.Shuffle = &shuffle
		}
		for i, one := range []Ticket{tk, later, next, tk} {
			if got, want := encoder.Marshal(one), one.Marshal(); !bytes.Equal(got, want) {
				t.Fatalf("ticket %d of a stream: %s, want %s", i, got, want)
			}
		}
	})
}

// BenchmarkTicketOfMixture encodes the tickets of the batches of a mixture.
func BenchmarkTicketOfMixture(b *testing.B) {
	t := Ticket{Request: Request{Mixture: &Mixture{}, Shuffle: &Shuffle{Seed: 1}}}
	for i := range 100 {
		t.Mixture.Sources = append(t.Mixture.Sources, MixtureSource{Dataset: fmt.Sprintf("dataset-%d", i)})
	}
	b.Run("apart", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			t.Step++
			t.Marshal()
		}
	})
	b.Run("stream", func(b *testing.B) {
		b.ReportAllocs()
		var encoder TicketEncoder
		for b.Loop() {
			t.Step++
			encoder.Marshal(t)
		}
	})
}

func BenchmarkParseRequestPositions(b *testing.B) {
	r := Request{Dataset: "a", Selection: &SelectionRef{}}
	for i := range MaxPositions {
		r.Selection.Positions = append(r.Selection.Positions, int64(i)*1_000_003)
	}
	text := r.Marshal()
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseRequest(text); err != nil {
			b.Fatal(err)
		}
	}
}
