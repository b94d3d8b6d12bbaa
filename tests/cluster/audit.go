package cluster

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"testing"
)

// A Request is one line of kube-apiserver's audit log (start the control plane with --audit=FILE):
// the user, the request, and the answer's code.
type Request struct {
	Verb             string
	RequestURI       string
	UserAgent        string
	User             struct{ Username string }
	ImpersonatedUser struct{ Username string }
	ObjectRef        struct{ APIGroup, Resource, Subresource, Namespace, Name string }
	ResponseStatus   struct{ Code int }
}

// Write reports whether the request changes anything.
func (r Request) Write() bool {
	switch r.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
		return true
	}
	return false
}

// ReadAudit returns the answered requests in the file that match. Watches appear when they end.
func ReadAudit(t testing.TB, file string, match func(Request) bool) []Request {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var found []Request
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r Request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			// The last line may be half written.
			t.Log(fmt.Errorf("audit log: %w", err))
			continue
		}
		if match(r) {
			found = append(found, r)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return found
}
