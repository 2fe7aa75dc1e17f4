-- +goose Up
-- A server without root has one user id for all. Where each is to have its own, the
-- transaction that gives one looks.
drop index sandboxes_used_uid;
create index sandboxes_used_uid on sandboxes (uid) where state <> 'deleted';

-- +goose Down
drop index sandboxes_used_uid;
create unique index sandboxes_used_uid on sandboxes (uid) where state <> 'deleted';
