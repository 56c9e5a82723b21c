package source

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"bowstring/fetch/object"
	"bowstring/internal/objecttest"
)

// keySets are made-up sets of keys that resemble those of buckets.
func keySets(rng *rand.Rand, n int) map[string][]string {
	sets := map[string][]string{}
	add := func(name string, key func(i int) string) {
		for i := range n {
			sets[name] = append(sets[name], key(i))
		}
	}
	add("numbers", func(i int) string { return fmt.Sprintf("img_%09d.jpg", i) })
	add("folders", func(i int) string { return fmt.Sprintf("train/%04d/%06d.jpg", i%97, i) })
	add("one folder", func(i int) string { return fmt.Sprintf("a/%x/x", i) })
	add("hashes", func(int) string { return fmt.Sprintf("%016x", rng.Uint64()) })
	pieces := []string{"a", "b", "é", "漢", "0", "/", "-", "z.jpg", "\U0001F600", " ", "~", "+", "\x7f", "Z"}
	add("unicode", func(int) string {
		key := "k"
		for range 1 + rng.IntN(12) {
			key += pieces[rng.IntN(len(pieces))]
		}
		return key
	})
	add("beginnings", func(i int) string { return strings.Repeat("a", i%900+1) + fmt.Sprint(i/900) })
	return sets
}

// Parallel requests return the keys of one sequential list, in its order, with any page
// size and prefix, also if answers are lost, rejected or repeated. They take only a few
// requests more.
func TestListRanges(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for name, keys := range keySets(rng, 3000) {
		server, err := objecttest.Start(objecttest.Config{Seed: seed, PageSize: 5 + rng.IntN(40)})
		if err != nil {
			t.Fatal(err)
		}
		s := &s3{Server: server}
		for _, key := range keys {
			s.PutObject("b", key, nil)
		}
		b, err := object.Open(t.Context(), "s3://b?endpoint="+s.Endpoint()+"&region=eu-central-1&anonymous=true", object.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, faulty := range []bool{false, true} {
			for _, prefix := range []string{"", keys[0][:1], keys[len(keys)/2][:min(4, len(keys[len(keys)/2]))]} {
				if !utf8.ValidString(prefix) {
					continue
				}
				server.Heal()
				var want []string
				before := server.Counts().Requests[objecttest.List]
				for o, err := range b.List(t.Context(), object.ListOptions{Prefix: prefix}) {
					if err != nil {
						t.Fatal(err)
					}
					if isPath(o.Key) {
						want = append(want, o.Key)
					}
				}
				plain := server.Counts().Requests[objecttest.List] - before
				if faulty {
					server.Fail(objecttest.Fault{Kinds: []objecttest.Kind{objecttest.List}, RepeatPage: true, Share: .05})
					server.Fail(objecttest.Fault{Kinds: []objecttest.Kind{objecttest.List}, Lose: true, Share: .02})
					server.Fail(objecttest.Fault{Kinds: []objecttest.Kind{objecttest.List}, Status: 500, Share: .02})
				}
				before = server.Counts().Requests[objecttest.List]
				list, odd, err := listRanges(t.Context(), b, prefix)
				if err != nil {
					t.Fatal(err)
				}
				asked := server.Counts().Requests[objecttest.List] - before
				var got []string
				for o := range list.from("") {
					got = append(got, o.Key)
				}
				if !slices.Equal(got, want) || list.n != int64(len(want)) {
					t.Fatalf("%s, prefix %q: %d keys, want %d", name, prefix, len(got), len(want))
				}
				for range 20 {
					key := keys[rng.IntN(len(keys))]
					if _, ok := list.find(key); ok != slices.Contains(want, key) {
						t.Errorf("%s: %q is found: %t", name, key, ok)
					}
				}
				if !faulty && asked > plain*3/2+2*rangesAtOnce+moreProbes {
					t.Errorf("%s, prefix %q: %d requests, and %d for one list", name, prefix, asked, plain)
				}
				if odd.n < 0 || prefix == "" && !faulty {
					t.Logf("%s: %d requests, and %d for one list of %d keys; %d odd", name, asked, plain, len(want), odd.n)
				}
			}
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Many keys are listed in a fraction of the time of a sequential list.
func TestListRangesOfMany(t *testing.T) {
	s := startS3(t)
	const n = 100_000
	for i := range n {
		s.PutObject("b", fmt.Sprintf("data/train/%02d/image-%07d.jpg", i/5000, i), nil)
	}
	b, err := s.opts.Bucket(t.Context(), "s3://b?endpoint="+s.Endpoint()+"&region=eu-central-1&anonymous=true")
	if err != nil {
		t.Fatal(err)
	}
	s.Fail(objecttest.Fault{Delay: func(*rand.Rand) time.Duration { return 10 * time.Millisecond }})
	begun := time.Now()
	list, _, err := listRanges(t.Context(), b, "data/")
	if err != nil || list.n != n {
		t.Fatalf("%d keys, %v", list.n, err)
	}
	asked := s.Counts().Requests[objecttest.List]
	t.Logf("%d requests in %v", asked, time.Since(begun))
	if asked > 160 {
		t.Errorf("%d requests for 100 pages", asked)
	}
}

// The key between two keys is between them, and is text.
func TestBetween(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	runes := []rune("ab~\x7f\u0080é漢\ud7ff\ue000\U0001F600\U0010FFFF 0/\x01")
	text := func() string {
		var b strings.Builder
		for range rng.IntN(5) {
			b.WriteRune(runes[rng.IntN(len(runes))])
		}
		return b.String()
	}
	found := 0
	for range 20_000 {
		prefix := text()
		after, until := prefix+text(), prefix+text()
		if rng.IntN(4) == 0 {
			until = ""
		} else if after >= until {
			continue
		}
		mid, ok := between(prefix, after, until)
		if !ok {
			continue
		}
		found++
		if mid <= after || until != "" && mid >= until || !utf8.ValidString(mid) || !strings.HasPrefix(mid, prefix) {
			t.Fatalf("between %q and %q, behind %q: %q", after, until, prefix, mid)
		}
	}
	if found < 5000 {
		t.Errorf("%d were found", found)
	}
}
