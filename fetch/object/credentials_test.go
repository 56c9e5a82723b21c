package object_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"bowstring/fetch/object"
	"bowstring/internal/objecttest"
	"bowstring/schema"
)

// environment replaces what says where credentials are.
func environment(t *testing.T, values map[string]string) {
	t.Helper()
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE",
		"AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"} {
		t.Setenv(name, "")
		_ = os.Unsetenv(name)
	}
	t.Setenv("AWS_REGION", "us-east-1")
	for k, v := range values {
		t.Setenv(k, v)
	}
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func in(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339) }

// cloud is a server that answers as the clouds' places of credentials do.
func cloud(t *testing.T, answer http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(answer)
	t.Cleanup(func() {
		s.Close()
		http.DefaultTransport.(*http.Transport).CloseIdleConnections() //nolint:forcetypeassert // it is
	})
	return s.URL
}

// The credentials of AWS come from each of the places where its own library finds them.
func TestCredentialsOfAWS(t *testing.T) {
	container := cloud(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"AccessKeyId":"AKIDCONTAINER","SecretAccessKey":"s3cr3t","Token":"s3cr3t","Expiration":%q}`,
			in(time.Hour))
	})
	machine := cloud(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/api/token"):
			w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "600")
			fmt.Fprint(w, "token")
		case strings.HasSuffix(r.URL.Path, "/security-credentials/"):
			fmt.Fprint(w, "role")
		case strings.HasSuffix(r.URL.Path, "/security-credentials/role"):
			fmt.Fprintf(w,
				`{"Code":"Success","AccessKeyId":"AKIDMACHINE","SecretAccessKey":"s3cr3t","Token":"s3cr3t","Expiration":%q}`,
				in(time.Hour))
		default:
			http.NotFound(w, r)
		}
	})
	sts := cloud(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w,
			`<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult>
<Credentials><AccessKeyId>AKIDWEB</AccessKeyId><SecretAccessKey>s3cr3t</SecretAccessKey><SessionToken>s3cr3t</SessionToken>
<Expiration>%s</Expiration></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`, in(time.Hour))
	})
	sso := cloud(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w,
			`{"roleCredentials":{"accessKeyId":"AKIDSSO","secretAccessKey":"s3cr3t","sessionToken":"s3cr3t","expiration":%d}}`,
			time.Now().Add(time.Hour).UnixMilli())
	})
	files := write(t, "credentials", "[default]\naws_access_key_id=AKIDFILE\naws_secret_access_key=s3cr3t\n"+
		"[other]\naws_access_key_id=AKIDOTHER\naws_secret_access_key=s3cr3t\n")
	ssoConfig := write(t, "config", "[default]\nsso_session=my\nsso_account_id=1\nsso_role_name=r\nregion=us-east-1\n"+
		"[sso-session my]\nsso_region=us-east-1\nsso_start_url=https://x\n")
	home := t.TempDir()
	cache := filepath.Join(home, ".aws/sso/cache")
	if err := os.MkdirAll(cache, 0o700); err != nil {
		t.Fatal(err)
	}
	token := fmt.Sprintf(`{"accessToken":"s3cr3t","expiresAt":%q}`, in(time.Hour))
	name := fmt.Sprintf("%x.json", sha1.Sum([]byte("my"))) //nolint:gosec // as AWS has it
	if err := os.WriteFile(filepath.Join(cache, name), []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, id string
		profile  string
		env      map[string]string
	}{
		{"environment", "AKIDENV", "", map[string]string{"AWS_ACCESS_KEY_ID": "AKIDENV", "AWS_SECRET_ACCESS_KEY": "s3cr3t"}},
		{"file", "AKIDFILE", "", map[string]string{"AWS_SHARED_CREDENTIALS_FILE": files}},
		{"profile", "AKIDOTHER", "other", map[string]string{"AWS_SHARED_CREDENTIALS_FILE": files}},
		{"profile of the environment", "AKIDOTHER", "", map[string]string{"AWS_SHARED_CREDENTIALS_FILE": files,
			"AWS_PROFILE": "other"}},
		{"container", "AKIDCONTAINER", "", map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": container}},
		{"web identity", "AKIDWEB", "", map[string]string{"AWS_ROLE_ARN": "arn:aws:iam::1:role/r",
			"AWS_WEB_IDENTITY_TOKEN_FILE": write(t, "token", "jwt"), "AWS_ENDPOINT_URL_STS": sts}},
		{"SSO", "AKIDSSO", "", map[string]string{"AWS_CONFIG_FILE": ssoConfig, "HOME": home, "AWS_ENDPOINT_URL_SSO": sso}},
		{"machine", "AKIDMACHINE", "", map[string]string{"AWS_EC2_METADATA_DISABLED": "false",
			"AWS_EC2_METADATA_SERVICE_ENDPOINT": machine}},
		{"none", "", "", map[string]string{"AWS_EC2_METADATA_DISABLED": "true"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := start(t, objecttest.Config{})
			s.PutObject("bucket", "k", []byte("x"))
			environment(t, c.env)
			b := open(t, s.URL("bucket"), object.Options{Profile: c.profile})
			if err := b.Range(t.Context(), "k", schema.ObjectVersion{}, 0, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			if id := s.SignedBy(); id != c.id {
				t.Fatalf("the request was signed by %q", id)
			}
			s.Fail(objecttest.Fault{Status: 403, Code: "AccessDenied"})
			_, err := b.Stat(t.Context(), "k")
			noSecret(t, err)
			if said := strings.Contains(err.Error(), "no credentials were found"); said != (c.id == "") {
				t.Fatal(err)
			}
			if b.URL() != s.URL("bucket") {
				t.Fatal(b.URL())
			}
		})
	}
}

// The endpoint and the region of environment and profile are those of the bucket, and stand in its URL.
func TestSettingsOfAWS(t *testing.T) {
	s := start(t, objecttest.Config{Region: "eu-north-1"})
	s.PutObject("bucket", "k", []byte("x"))
	for name, env := range map[string]map[string]string{
		"for S3": {"AWS_ENDPOINT_URL_S3": s.Endpoint(), "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
			"AWS_REGION": "eu-north-1"},
		"for all": {"AWS_ENDPOINT_URL": s.Endpoint(), "AWS_REGION": "eu-north-1"},
		"in a file": {"AWS_CONFIG_FILE": write(t, "config", "[default]\nregion=eu-north-1\nservices=mine\n[services "+
			"mine]\ns3 =\n  endpoint_url="+
			s.Endpoint()+"\n"), "AWS_REGION": ""},
	} {
		t.Run(name, func(t *testing.T) {
			environment(t, map[string]string{"AWS_ACCESS_KEY_ID": "AKIDENV", "AWS_SECRET_ACCESS_KEY": "s3cr3t"})
			for k, v := range env {
				t.Setenv(k, v)
			}
			before := s.Counts().All()
			b := open(t, "s3://bucket", object.Options{})
			if err := b.Range(t.Context(), "k", schema.ObjectVersion{}, 0, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			if b.URL() != s.URL("bucket") || s.Counts().All() != before+1 {
				t.Fatalf("%s, %d requests", b.URL(), s.Counts().All()-before)
			}
		})
	}
}

// Credentials that a server calls expired are renewed, once; those that cannot be are named.
func TestExpired(t *testing.T) {
	s := start(t, objecttest.Config{})
	s.PutObject("bucket", "k", []byte("x"))
	counter := filepath.Join(t.TempDir(), "n")
	process := write(t, "process", fmt.Sprintf(`#!/bin/sh
echo x >>%s
n=$(wc -l <%s)
echo "{\"Version\":1,\"AccessKeyId\":\"AKID$((n))\",\"SecretAccessKey\":\"s3cr3t\",\"SessionToken\":\"s3cr3t$n\",\"Expiration\":\"%s\"}"
`, counter, counter, in(time.Hour)))
	environment(t, map[string]string{"AWS_CONFIG_FILE": write(t, "config", "[default]\ncredential_process="+process+"\n")})
	b := open(t, s.URL("bucket"), object.Options{})
	calls := []func() error{
		func() error { return b.Range(t.Context(), "k", schema.ObjectVersion{}, 0, make([]byte, 1)) },
		func() error { return second(b.Stat(t.Context(), "k")) },
		func() error {
			_, outcome, err := b.Put(t.Context(), "k", []byte("x"), object.Condition{})
			if outcome != object.Made {
				err = errors.Join(err, errors.New(outcome.String()))
			}
			return err
		},
	}
	for n, call := range calls {
		if err := call(); err != nil {
			t.Fatal(err)
		}
		if s.SignedBy() != fmt.Sprintf("AKID%d", n+1) {
			t.Fatal(s.SignedBy())
		}
		s.Expire(s.SignedBy())
		if err := call(); err != nil || s.SignedBy() != fmt.Sprintf("AKID%d", n+2) {
			t.Fatal(err, s.SignedBy())
		}
	}
	// Given ones cannot be renewed.
	b = open(t, s.URL("bucket"), object.Options{Keys: &testKeys})
	s.Expire(testKeys.ID)
	before := s.Counts().All()
	for n, call := range calls {
		err := call()
		if !errors.Is(err, schema.ErrDenied) && n != 1 || err == nil {
			t.Fatal(err)
		}
		if n == 0 && !strings.Contains(err.Error(), "expired") {
			t.Fatal(err)
		}
		noSecret(t, err)
	}
	if n := s.Counts().All() - before; n != 3 {
		t.Fatalf("%d requests", n)
	}
}

// Credentials are renewed before their end.
func TestRenewedEarly(t *testing.T) {
	s := start(t, objecttest.Config{})
	s.PutObject("bucket", "k", []byte("x"))
	var asked atomic.Int64
	container := cloud(t, func(w http.ResponseWriter, _ *http.Request) {
		life := time.Minute // shorter than the margin of renewal
		if asked.Add(1) > 1 {
			life = time.Hour
		}
		fmt.Fprintf(w, `{"AccessKeyId":"AKID%d","SecretAccessKey":"s3cr3t","Token":"s3cr3t","Expiration":%q}`, asked.Load(),
			in(life))
	})
	environment(t, map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": container})
	b := open(t, s.URL("bucket"), object.Options{})
	for range 10 {
		if err := b.Range(t.Context(), "k", schema.ObjectVersion{}, 0, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if asked.Load() != 2 || s.SignedBy() != "AKID2" {
		t.Fatalf("asked %d times, signed by %s", asked.Load(), s.SignedBy())
	}
}

// bearer is a bucket of another cloud, at a server that takes one token.
func bearer(t *testing.T) (endpoint string, seen *atomic.Value) {
	t.Helper()
	seen = &atomic.Value{}
	return cloud(t, func(w http.ResponseWriter, r *http.Request) {
		seen.Store(r.Header.Get("Authorization"))
		if r.Header.Get("Authorization") != "Bearer s3cr3t-token" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.Header().Set("X-Goog-Generation", "17")
		w.Header().Set("Etag", `"tag"`)
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader("0123456789"))
	}), seen
}

func TestCredentialsOfGoogle(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	pemKey := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	tokens := cloud(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Metadata-Flavor", "Google")
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"access_token":"s3cr3t-token","token_type":"Bearer","expires_in":3600}`)
	})
	account, _ := json.Marshal(map[string]string{"type": "service_account", "client_email": "a@b", "private_key_id": "1",
		"private_key": string(pemKey), "token_uri": tokens})
	for _, c := range []struct {
		name string
		env  map[string]string
		ok   bool
	}{
		{"service account", map[string]string{"GOOGLE_APPLICATION_CREDENTIALS": write(t, "account.json", string(account))},
			true},
		{"machine", map[string]string{"GCE_METADATA_HOST": strings.TrimPrefix(tokens, "http://")}, true},
		{"broken file", map[string]string{"GOOGLE_APPLICATION_CREDENTIALS": write(t, "account.json", `{"s3cr3t"`)}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			endpoint, _ := bearer(t)
			t.Setenv("HOME", t.TempDir())
			t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", "")
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			b := open(t, "gs://bucket?endpoint="+endpoint, object.Options{})
			err := b.Range(t.Context(), "k", schema.ObjectVersion{ID: "17"}, 1, make([]byte, 2))
			noSecret(t, err)
			if (err == nil) != c.ok || err != nil && !errors.Is(err, schema.ErrDenied) {
				t.Fatal(err)
			}
		})
	}
}

func TestCredentialsOfAzure(t *testing.T) {
	endpoint, seen := bearer(t)
	identity := cloud(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":"s3cr3t-token","expires_on":"%d","resource":%q,"token_type":"Bearer"}`,
			time.Now().Add(time.Hour).Unix(), r.URL.Query().Get("resource"))
	})
	t.Setenv("IDENTITY_ENDPOINT", identity)
	t.Setenv("IDENTITY_HEADER", "s3cr3t")
	url := "az://account/container?endpoint=" + endpoint
	b := open(t, url, object.Options{})
	v := schema.ObjectVersion{ETag: "tag"}
	if err := b.Range(t.Context(), "k", v, 1, make([]byte, 2)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, begins string
		url          string
		keys         *object.Keys
		env          string
	}{
		{"shared key", "SharedKey account:", url, &object.Keys{Secret: base64.StdEncoding.EncodeToString([]byte("s3cr3t"))},
			""},
		{"signature", "", url, &object.Keys{Token: "sv=1&sig=s3cr3t"}, ""},
		{"signature of the environment", "", url, nil, "?sv=1&sig=s3cr3t"},
		{"anonymous", "", url + "&anonymous=true", nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("AZURE_STORAGE_SAS_TOKEN", c.env)
			b := open(t, c.url, object.Options{Keys: c.keys})
			err := b.Range(t.Context(), "k", v, 1, make([]byte, 2))
			if !errors.Is(err, schema.ErrDenied) {
				t.Fatal(err)
			}
			noSecret(t, err)
			if got, _ := seen.Load().(string); !strings.HasPrefix(got, c.begins) || (got == "") != (c.begins == "") {
				t.Fatalf("Authorization: %s", got)
			}
			if b.URL() != c.url {
				t.Fatal(b.URL())
			}
		})
	}
	if _, err := object.Open(context.Background(), url,
		object.Options{Keys: &object.Keys{Secret: "s3cr3t!"}}); err == nil {
		t.Fatal("a key that is not in base64")
	} else {
		noSecret(t, err)
	}
}

func TestKeysShowNothing(t *testing.T) {
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		for _, v := range []any{testKeys, &testKeys, object.Options{Keys: &testKeys}, struct{ K object.Keys }{testKeys}} {
			if text := fmt.Sprintf(format, v); strings.Contains(text, "s3cr3t") {
				t.Errorf("%s of %T is %s", format, v, text)
			}
		}
	}
}
