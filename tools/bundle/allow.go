// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"reflect"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	berthv1 "berth/api/berth/v1"
	"berth/internal/base/clock"
	"berth/internal/base/event"
)

// texts has the function that each text of an event passes, by KIND.FIELD or by FIELD. A text whose
// field is not here is left out, so a kind that gets another text does not have it in a bundle
// until it is added.
var texts = map[string]func(string) string{
	"Access":       term[string],
	"Action":       term[string],
	"After":        after,
	"Boot":         func(s string) string { return match(uuid, s) },
	"Container":    nameOf,
	"Err":          cause,
	"Holds":        term[string],
	"Image":        imageOf,
	"Lane":         term[string],
	"Limit":        term[string],
	"Name":         term[string], // a program chooses its name
	"Names":        imageOf,
	"Namespace":    nameOf,
	"OOMLimit":     term[string],
	"OtherWitness": term[string],
	"Phase":        term[string],
	"Pod":          nameOf,
	"Process":      term[string],
	"Reason":       term[string],
	"Sandbox":      idOf,
	"Step":         term[string],
	"Stream":       term[string],
	"Task":         term[string],
	"UID":          nameOf,
	"Version":      func(s string) string { return match(release, s) },
	"Witness":      term[string],

	"AttemptPostponed.Until":  hidden,
	"Degraded.What":           hidden,
	"Degraded.Why":            cause,
	"EndHeld.By":              hidden,
	"ExecPending.Still":       hidden,
	"HistoryUnread.File":      hidden,
	"HostPathSilent.Path":     hidden,
	"OrphansUnlisted.What":    hidden,
	"Released.What":           term[string],
	"ReleasedAroundShim.Shim": hidden,
	"TookLong.Image":          omitted,
	"TookLong.What":           term[string],
}

// allow returns an event with those of its texts that are written. Its numbers, instants and
// booleans are not secret.
func allow(e event.Event) event.Event {
	v := reflect.New(reflect.TypeOf(e)).Elem()
	v.Set(reflect.ValueOf(e))
	redact(v, event.Kind(e), "")
	return v.Interface().(event.Event)
}

// redact changes the texts in a field of an event.
func redact(v reflect.Value, kind, field string) {
	switch v.Kind() {
	case reflect.String:
		f, ok := texts[kind+"."+field]
		if !ok {
			f, ok = texts[field]
		}
		if !ok {
			f = omitted
		}
		v.SetString(f(v.String()))
	case reflect.Slice:
		list := reflect.Zero(v.Type())
		for i := range v.Len() {
			item := reflect.New(v.Type().Elem()).Elem()
			item.Set(v.Index(i))
			redact(item, kind, field)
			if !item.IsZero() {
				list = reflect.Append(list, item)
			}
		}
		v.Set(list)
	case reflect.Pointer:
		if !v.IsNil() {
			of := reflect.New(v.Type().Elem())
			of.Elem().Set(v.Elem())
			redact(of.Elem(), kind, field)
			v.Set(of)
		}
	case reflect.Struct:
		if t := v.Type(); t == reflect.TypeFor[clock.Instant]() || t == reflect.TypeFor[time.Time]() {
			return
		}
		for i := range v.NumField() {
			redact(v.Field(i), kind, v.Type().Field(i).Name)
		}
	case reflect.Bool, reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint32, reflect.Uint64, reflect.Float64:
	default: // none of today's
		v.SetZero()
	}
}

// recordOf returns the part of a record that is written.
func recordOf(o *berthv1.Object) Record {
	return Record{
		ID:      idOf(o.GetId()),
		Of:      namesOf(NamesOf(o.GetOf())),
		Handler: term(o.GetHandler()),
		Pinned:  o.GetPinned(),
		Host:    o.GetHost(),
		Systemd: o.GetSystemd(),
		Image:   imageOf(o.GetImage()),
		State:   term(o.GetState()),
		Created: instant(o.GetCreated()),
		Started: instant(o.GetStarted()),
		Ended:   instant(o.GetEnded()),
		Code:    o.GetCode(),
		Reason:  term(o.GetReason()),
		Waits:   term(o.GetWaits()),
		Tries:   int(o.GetTries()),
	}
}

// instant returns an instant, the zero Time for nil.
func instant(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

// NamesOf returns the names of a message.
func NamesOf(n *berthv1.Names) event.Names {
	return event.Names{
		Namespace: n.GetNamespace(),
		Pod:       n.GetPod(),
		UID:       n.GetUid(),
		Sandbox:   n.GetSandbox(),
		Container: n.GetContainer(),
		Attempt:   n.GetAttempt(),
	}
}
