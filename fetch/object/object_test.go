package object_test

import (
	"context"
	"os"
	"testing"

	"bowstring/fetch/object"
	"bowstring/internal/objecttest"
)

func init() {
	// No test finds credentials of the machine, nor asks for any.
	for _, v := range []string{"AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"} {
		_ = os.Unsetenv(v)
	}
	for k, v := range map[string]string{"AWS_ACCESS_KEY_ID": "AKIDTEST", "AWS_SECRET_ACCESS_KEY": "s3cr3t-of-the-test",
		"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/nowhere/config",
		"AWS_SHARED_CREDENTIALS_FILE": "/nowhere/credentials"} {
		_ = os.Setenv(k, v)
	}
}

func open(t *testing.T, url string, opts object.Options) object.Bucket {
	t.Helper()
	b, err := object.Open(context.Background(), url, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func start(t *testing.T, cfg objecttest.Config) *objecttest.Server {
	t.Helper()
	s, err := objecttest.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestDirectory(t *testing.T) {
	dir := t.TempDir()
	objecttest.Run(t, func(t *testing.T) object.Bucket { return open(t, "file://"+dir, object.Options{}) },
		objecttest.Traits{Paths: true})
}

func TestServer(t *testing.T) {
	s := start(t, objecttest.Config{PageSize: 7})
	objecttest.Run(t, func(t *testing.T) object.Bucket { return open(t, s.URL("bucket"), object.Options{}) },
		objecttest.Traits{})
}

func TestServerThatKeepsVersions(t *testing.T) {
	s := start(t, objecttest.Config{Versions: true})
	objecttest.Run(t, func(t *testing.T) object.Bucket { return open(t, s.URL("bucket"), object.Options{}) },
		objecttest.Traits{})
}
