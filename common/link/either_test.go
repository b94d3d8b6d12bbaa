package link_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skerry-io/skerry/common/link"
)

func TestEither(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("connection refused")
		now, older := &fakeDialer{err: refused}, &fakeDialer{}
		d := link.Either(now, older)
		dial := func(what string, opens bool, dialledNow, dialledOlder int) {
			t.Helper()
			if conn, err := d.Dial(t.Context(), "cloud"); (err == nil) != opens || (conn != nil) != opens {
				t.Errorf("%s: %v, %v", what, conn, err)
			}
			if now.dialled != dialledNow || older.dialled != dialledOlder {
				t.Errorf("%s: dialled %d and %d times, want %d and %d", what, now.dialled, older.dialled, dialledNow, dialledOlder)
			}
		}
		dial("a server of before", true, 1, 1)
		dial("it is asked first then", true, 1, 2)
		time.Sleep(2 * time.Hour)
		now.err = nil
		dial("it has been upgraded", true, 2, 2)
		dial("and stays so", true, 3, 2)
		now.err, older.err = refused, refused
		dial("no server at all", false, 4, 3)
		older.err, now.silent = nil, true
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if conn, err := d.Dial(ctx, "cloud"); err != nil || conn == nil {
			t.Errorf("no answer at all of the first: %v", err)
		}
		time.Sleep(2 * time.Hour)
		now.silent, now.dialled, older.dialled = false, 4, 3
		older.err = refused
		now.err = &link.CloseError{Code: link.CloseForbidden, Remote: true}
		dial("the server says no", false, 5, 3)
	})
}
