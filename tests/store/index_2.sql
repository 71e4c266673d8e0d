-- The index as version 2 of the schema made it (Larder at e6c4a8f): tables, indexes and triggers.
CREATE TABLE blobs (
    digest BLOB NOT NULL,
    size BIGINT NOT NULL,
    crc32 BIGINT NOT NULL,
    last_used FLOAT NOT NULL,
    mtime_ns BIGINT NOT NULL,
    boot BIGINT NOT NULL,
    item INTEGER DEFAULT '0' NOT NULL,
    PRIMARY KEY (digest)
)
 WITHOUT ROWID;

CREATE INDEX blobs_by_use ON blobs (last_used);

CREATE TABLE objects (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    origin TEXT NOT NULL,
    bucket TEXT NOT NULL,
    "key" TEXT NOT NULL,
    slot INTEGER NOT NULL,
    etag TEXT NOT NULL,
    size BIGINT NOT NULL,
    last_modified TEXT NOT NULL,
    headers TEXT NOT NULL,
    checksums TEXT,
    block_size BIGINT NOT NULL,
    confirmed_at FLOAT NOT NULL,
    UNIQUE (origin, bucket, "key")
);

CREATE TABLE spaces (
    name TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    blobs BIGINT NOT NULL,
    PRIMARY KEY (name)
);

CREATE TABLE meta (
    name TEXT NOT NULL,
    value BIGINT NOT NULL,
    PRIMARY KEY (name)
);

CREATE TABLE object_blocks (
    object_id INTEGER NOT NULL,
    no INTEGER NOT NULL,
    digest BLOB NOT NULL,
    PRIMARY KEY (object_id, no),
    FOREIGN KEY(object_id) REFERENCES objects (id) ON DELETE CASCADE
)
 WITHOUT ROWID;

CREATE INDEX object_blocks_by_digest ON object_blocks (digest);

CREATE TABLE grants (
    object_id INTEGER NOT NULL,
    identity TEXT NOT NULL,
    granted_at FLOAT NOT NULL,
    PRIMARY KEY (object_id, identity),
    FOREIGN KEY(object_id) REFERENCES objects (id) ON DELETE CASCADE
)
 WITHOUT ROWID;

CREATE TRIGGER blob_added AFTER INSERT ON blobs BEGIN UPDATE spaces SET bytes = bytes + NEW.size, blobs = blobs + 1 WHERE name = 'node'; END;

CREATE TRIGGER blob_removed AFTER DELETE ON blobs BEGIN UPDATE spaces SET bytes = bytes - OLD.size, blobs = blobs - 1 WHERE name = 'node'; END;
