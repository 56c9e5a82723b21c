package object_test

import (
	"errors"
	"strings"
	"testing"

	"bowstring/fetch/object"
	"bowstring/schema"
)

func TestSplitURL(t *testing.T) {
	for _, c := range []struct{ url, bucket, prefix string }{
		{"s3://b", "s3://b", ""},
		{"s3://b/", "s3://b", ""},
		{"s3://b/a/b c%20/", "s3://b", "a/b c%20/"},
		{"s3://b//x", "s3://b", "/x"},
		{"s3://b/p?style=path&endpoint=http://H:1/&region=eu-1", "s3://b?endpoint=http://h:1&region=eu-1&style=path", "p"},
		{"s3://b?endpoint=http%3A%2F%2Fh%3A1", "s3://b?endpoint=http://h:1", ""},
		{"s3://b?anonymous=true&requester-pays=false", "s3://b?anonymous=true", ""},
		{"gs://b/p", "gs://b", "p"},
		{"az://acc/con", "az://acc/con", ""},
		{"az://acc/con/p/q", "az://acc/con", "p/q"},
		{"az://acc/con?endpoint=http://127.0.0.1:10000/acc", "az://acc/con?endpoint=http://127.0.0.1:10000/acc", ""},
		{"file:///a/b%20c/../d/", "file:///a/d", ""},
		{"file:///a b%25", "file:///a%20b%25", ""},
		{"file://localhost/x", "file:///x", ""},
		{"https://Host:8080/a/b%20c", "https://host:8080", "a/b c"},
		{"http://host", "http://host", ""},
	} {
		bucket, prefix, err := object.SplitURL(c.url)
		if err != nil || bucket != c.bucket || prefix != c.prefix {
			t.Errorf("%s: %q, %q, %v, want %q, %q", c.url, bucket, prefix, err, c.bucket, c.prefix)
		}
		if again, _, err := object.SplitURL(bucket); again != bucket {
			t.Errorf("%s is %s when it is read again: %v", bucket, again, err)
		}
	}
	for url, say := range map[string]string{
		"s3://":                              "names no bucket",
		"s3:///x":                            "names no bucket",
		"/a/b":                               "begins with",
		"ftp://h/s3cr3t":                     "begins with",
		"s3://me:s3cr3t@b/x":                 "user or password",
		"s3://b?token=s3cr3t":                "none of endpoint",
		"s3://b?endpoint=http://u:s3cr3t@h":  "without user",
		"s3://b?endpoint=h:1":                "an endpoint is",
		"s3://b?style=s3cr3t":                "want path or virtual",
		"s3://b?region=S3CR3T!":              "a region such as",
		"s3://b?anonymous":                   "no value",
		"s3://data--use1-az4--x-s3/p":        "directory bucket",
		"az://acc":                           "no container",
		"az://acc/":                          "no container",
		"file://host/x":                      "no host",
		"file://x":                           "no host",
		"file:///x?s3cr3t=1":                 "no settings",
		"file:///%zz":                        "cannot be read",
		"https://u:s3cr3t@h/x":               "user or password",
		"https://h/x?X-Amz-Signature=s3cr3t": "has a query",
		"https:///x":                         "names no web server",
		"gs://b?requester-pays=true":         "none of",
	} {
		_, _, err := object.SplitURL(url)
		if err == nil || !strings.Contains(err.Error(), say) || strings.Contains(strings.ToLower(err.Error()), "s3cr3t") ||
			!errors.Is(err, schema.ErrInvalid) && !errors.Is(err, schema.ErrNotSupported) {
			t.Errorf("%s: %v, want %q", url, err, say)
		}
	}
	if _, err := object.Open(t.Context(), "s3://b/prefix", object.Options{}); !errors.Is(err, schema.ErrInvalid) {
		t.Errorf("a bucket with a prefix: %v", err)
	}
	if object.IsURL("/tmp/x") || object.IsURL("C:\\x") || !object.IsURL("s3://b") || object.IsURL("x://b") {
		t.Error("IsURL")
	}
}
