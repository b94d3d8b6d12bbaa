package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/trust/join"
)

func TestWriteTable(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	var b strings.Builder
	err := writeTable(&b, []join.TokenInfo{
		{ID: "abcdef", Expires: now.Add(-time.Second), UsesLeft: 1, Description: "old"},
		{ID: "ghijkl", Expires: now.Add(time.Hour), UsesLeft: 20, Node: types.NodeName("edge1")},
	}, now)
	if err != nil {
		t.Fatal(err)
	}
	want := "" +
		"ID       EXPIRES (UTC)                   USES LEFT   NODE    DESCRIPTION\n" +
		"abcdef   2026-11-20 11:59:59 (expired)   1           any     old\n" +
		"ghijkl   2026-11-20 13:00:00             20          edge1   \n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
}
