package object

import (
	"encoding/xml"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

// both reads a text by the quick way and by encoding/xml. Where the quick way reads it, they are to agree.
func both(t *testing.T, text string) (quick bool) {
	t.Helper()
	got, err := quickListing([]byte(text))
	if err != nil {
		return false
	}
	want := &listing{}
	if err := xml.Unmarshal([]byte(text), want); err != nil {
		// The scanner does not look at elements that no part of a list needs.
		if msg := err.Error(); strings.Contains(msg, "invalid character entity") || strings.Contains(msg,
			"illegal character code") {
			return true
		}
		t.Fatalf("read, which encoding/xml refuses: %v\n%s", err, text)
	}
	want.XMLName = got.XMLName
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("read as\n%+v, want\n%+v, of\n%s", got, want, text)
	}
	return true
}

func TestQuickListing(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	word := func() string {
		var b strings.Builder
		for range r.IntN(6) {
			b.WriteString([]string{"a", "/", "&", "<", ">", "\"", "'", " ", "ä", "😀", "%2B", "+", ";", "]]>"}[r.IntN(14)])
		}
		var e strings.Builder
		if err := xml.EscapeText(&e, []byte(b.String())); err != nil {
			t.Fatal(err)
		}
		return e.String()
	}
	quick := 0
	const rounds = 2000
	for range rounds {
		var b strings.Builder
		b.WriteString([]string{"", xml.Header, "<?xml version=\"1.0\"?>\n"}[r.IntN(3)])
		b.WriteString([]string{"<ListBucketResult>",
			`<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">`}[r.IntN(2)])
		for range r.IntN(5) {
			b.WriteString([]string{"\n  ", "", "<!-- <Key> -->"}[max(r.IntN(40)-37, 0)])
			switch r.IntN(5) {
			case 0, 1:
				fmt.Fprintf(&b,
					"<Contents><Key>%s</Key><Size>%d</Size><ETag>%s</ETag><Owner><ID>x</ID></Owner><ChecksumType/></Contents>",
					word(), r.Int64N(1e12), word())
			case 2:
				fmt.Fprintf(&b, "<CommonPrefixes><Prefix>%s</Prefix></CommonPrefixes>", word())
			case 3:
				fmt.Fprintf(&b, "<Prefix>%s</Prefix><IsTruncated>%t</IsTruncated>", word(), r.IntN(2) == 0)
			case 4:
				fmt.Fprintf(&b, "<NextContinuationToken>%s</NextContinuationToken><EncodingType>url</EncodingType><Contents/>",
					word())
			}
		}
		b.WriteString("</ListBucketResult>")
		text := b.String()
		if both(t, text) {
			quick++
		}
		// Damage is read by both alike, or by encoding/xml alone.
		if n := r.IntN(len(text)); r.IntN(2) == 0 {
			both(t, text[:n])
		} else {
			both(t, text[:n]+string(text[r.IntN(len(text))])+text[n:])
		}
	}
	if quick < rounds/2 {
		t.Fatalf("of %d lists %d are read the quick way", rounds, quick)
	}
}

func FuzzQuickListing(f *testing.F) {
	f.Add("<ListBucketResult><Contents><Key>a&amp;b</Key><Size>1</Size></Contents></ListBucketResult>")
	f.Fuzz(func(t *testing.T, text string) { both(t, text) })
}

func BenchmarkListing(b *testing.B) {
	var text strings.Builder
	text.WriteString(xml.Header + "<ListBucketResult>")
	for i := range 1000 {
		fmt.Fprintf(&text,
			"<Contents><Key>imagenet/train/n01440764/%07d.JPEG</Key><LastModified>2024-01-02T03:04:05.000Z</LastModified>"+
				"<ETag>&quot;0123456789abcdef0123456789abcdef&quot;</ETag><Size>110000</Size>"+
				"<StorageClass>STANDARD</StorageClass></Contents>", i)
	}
	text.WriteString("</ListBucketResult>")
	body := []byte(text.String())
	b.Run("quick", func(b *testing.B) {
		for b.Loop() {
			if _, err := quickListing(body); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("xml", func(b *testing.B) {
		for b.Loop() {
			if err := xml.Unmarshal(body, &listing{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
