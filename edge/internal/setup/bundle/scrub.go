package bundle

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Removed replaces a secret.
const Removed = "[REMOVED]"

// minSecret is the shortest value of a Secret that is removed, in bytes: shorter ones occur
// everywhere.
const minSecret = 4

// Scrubber takes secrets out of texts.
type Scrubber struct {
	values  *strings.Replacer
	pattern []pattern
}

type pattern struct {
	is *regexp.Regexp
	by string
}

// NewScrubber makes a Scrubber for the known values of Secrets and credentials. Each is removed
// verbatim, line by line, in base64, and in the encodings of JSON and URLs.
func NewScrubber(secrets [][]byte) *Scrubber {
	forms := map[string]struct{}{}
	add := func(s string) {
		if len(s) >= minSecret {
			forms[s] = struct{}{}
		}
	}
	for _, secret := range secrets {
		text := strings.TrimSpace(string(secret))
		if len(text) < minSecret {
			continue
		}
		add(text)
		for _, raw := range [][]byte{secret, []byte(text)} {
			for _, e := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.RawURLEncoding} {
				add(e.EncodeToString(raw))
			}
		}
		add(url.QueryEscape(text))
		if quoted, err := json.Marshal(text); err == nil {
			add(string(quoted[1 : len(quoted)-1]))
		}
		if lines := strings.Split(text, "\n"); len(lines) > 1 {
			for _, line := range lines {
				if line = strings.TrimSpace(line); len(line) >= 16 && !strings.HasPrefix(line, "-----") { // shorter lines are of any text
					add(line)
				}
			}
		}
	}
	all := make([]string, 0, 2*len(forms))
	var keys []string
	for f := range forms {
		keys = append(keys, f)
	}
	slices.SortFunc(keys, func(a, b string) int { return len(b) - len(a) }) // one may be within another
	for _, f := range keys {
		all = append(all, f, Removed)
	}
	return &Scrubber{values: strings.NewReplacer(all...), pattern: []pattern{
		{regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\z)`), Removed},
		{regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*`), Removed}, // a JSON web token
		{regexp.MustCompile(`(?i)\b(bearer|basic) +[A-Za-z0-9._~+/=-]{8,}`), "$1 " + Removed},
		{regexp.MustCompile(`(\b[a-zA-Z][a-zA-Z0-9+.-]*://)[^\s/@"']+@`), "${1}" + Removed + "@"}, // a URL's user and password
		{regexp.MustCompile(`(?i)\b([a-z0-9_.-]*(?:password|passwd|secret|api_?key|token))(["']?\s*[=:]\s*["']?)[^\s"',;&]{4,}`), "$1$2" + Removed},
	}}
}

// Scrub returns a text without its secrets.
func (s *Scrubber) Scrub(text []byte) []byte {
	out := s.values.Replace(string(text))
	for _, p := range s.pattern {
		out = p.is.ReplaceAllString(out, p.by)
	}
	return []byte(out)
}

// named reports whether a field of a configuration is named like a credential; one that has the
// path of a file is not.
func named(field string) bool {
	f := strings.ToLower(field)
	for _, end := range []string{"file", "dir", "path", "listen", "timeout", "enable"} {
		if strings.HasSuffix(f, end) {
			return false
		}
	}
	for _, part := range []string{"password", "passwd", "secret", "token", "credential", "apikey", "privatekey", "keycommand", "header", "authorization"} {
		if strings.Contains(f, part) {
			return true
		}
	}
	return false
}

// withoutCredentials removes the values of such fields from a YAML document. Other content is left
// to the Scrubber.
func withoutCredentials(doc []byte) []byte {
	var value any
	if len(bytes.TrimSpace(doc)) == 0 || yaml.Unmarshal(doc, &value) != nil {
		return doc
	}
	out, err := yaml.Marshal(redact(value))
	if err != nil {
		return doc
	}
	return out
}

func redact(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			if _, is := inner.(bool); named(key) && inner != nil && !is {
				v[key] = Removed
				continue
			}
			v[key] = redact(inner)
		}
	case []any:
		for i := range v {
			v[i] = redact(v[i])
		}
	}
	return value
}
